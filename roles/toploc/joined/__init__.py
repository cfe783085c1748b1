"""Aggregates before judging: one number for a whole submission with a known rate of false positives, and a sum over a
node's history (docs/checks.md describes the noise model)."""

from roles.toploc.joined.calibration import NAMES, Calibration, Component, Fit
from roles.toploc.joined.fitting import fit
from roles.toploc.joined.history import History, history_limit
from roles.toploc.joined.score import Score, score

__all__ = ["NAMES", "Calibration", "Component", "Fit", "History", "Score", "fit", "history_limit", "score"]
