"""Extracts the part of a completion that is judged, and calls a scorer in its sandbox."""

from __future__ import annotations

from roles.sandbox.function import CallBroken, CallFailed, ConfinedFunction
from roles.tasks.task import Undecided

MAX_COMPLETION_CHARS = 400_000
KEPT_CHARS = 16_000
"""Characters kept of the end, where the answer is; more would only cost time."""


def answer_part(completion: str) -> str:
    """The end of what follows `</think>` (INTELLECT-2, section 3.1). A text that never stops thinking has no answer."""
    if len(completion) > MAX_COMPLETION_CHARS:
        return ""
    _, mark, said = completion.rpartition("</think>")
    if not mark and "<think>" in completion:
        return ""
    return said[-KEPT_CHARS:]


def ask_scorer(scorer: ConfinedFunction, *arguments: object) -> float:
    """A score from 0.0 to 1.0; 0.0 when the scorer raises or does not return a number. Raises Undecided when it
    ran out of time or memory."""
    try:
        return min(1.0, max(0.0, float(scorer(*arguments))))
    except CallBroken as error:
        raise Undecided(str(error)) from error
    except (CallFailed, TypeError, ValueError, OverflowError):
        return 0.0
