"""Which validators' soft refusals oblige others to audit, within a budget for each. Pure.

An audited refusal that is soft obliges them: so one audit finds for all what a sampled submission hides. But it is only
said, never proven, so a validator that refuses what others find to be right has a budget. A fault needs none: it is
answered by name, and obliges always (`TrustedState.is_doubted`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from itertools import islice

from roles.messages import Verdict

FREE = 16
"""Soft refusals of one validator that oblige although no quorum refuses with it, of the submissions remembered ..."""
SHARE = 16
"""... and one more for each so many submissions: an honest one is alone much more rarely."""


class Objections:
    """The soft refusals of each validator that no quorum has upheld, in the order they came. One that is taken back
    counts on: else the same budget would be spent again and again."""

    def __init__(self) -> None:
        self._alone: defaultdict[str, dict[str, None]] = defaultdict(dict)  # by validator: digests of submissions

    def note(self, digest: str, verdicts: Mapping[str, Verdict], *, quorum: int) -> None:
        """A verdict on this submission has come; `verdicts` are all that stand, by validator."""
        refusing = [name for name, said in verdicts.items() if said.outcome == "fault" or is_objection(said)]
        if len(refusing) >= quorum:
            self.forget(digest)
            return
        for name in refusing:
            if verdicts[name].outcome == "soft":
                self._alone[name].setdefault(digest)

    def obliges(self, digest: str, validator: str, *, seen: int) -> bool:
        """Whether this validator's soft refusal obliges others, where `seen` submissions are remembered."""
        alone = self._alone.get(validator, {})
        return digest not in alone or digest in islice(alone, FREE + seen // SHARE)

    def forget(self, digest: str) -> None:
        """Drop a submission whose refusal was upheld, or whose step is over."""
        for alone in self._alone.values():
            alone.pop(digest, None)

    def keep_only(self, validators: frozenset[str]) -> None:
        """Drop validators that are no longer in the set."""
        for name in self._alone.keys() - validators:
            del self._alone[name]


def is_objection(verdict: Verdict) -> bool:
    """Whether a validator audited a submission and refused it softly."""
    return verdict.outcome == "soft" and verdict.audited
