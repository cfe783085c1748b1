"""Which validators' soft refusals oblige others to audit, within a budget for each. Pure.

An audited soft refusal obliges the others to audit too, so that one audit reveals to all what sampling would miss. But
it is only a claim, never proof, so a validator that refuses what others find correct has a budget. A fault needs no
budget: its author is identified, and it always obliges (`TrustedState.is_doubted`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from itertools import islice

from roles.messages import Verdict

FREE = 16
"""Soft refusals of one validator that oblige others without a quorum agreeing, among the submissions remembered ..."""
SHARE = 16
"""... plus one for each so many submissions; an honest validator is alone far less often."""


class Objections:
    """Each validator's soft refusals that no quorum has upheld, in order of arrival. One that is withdrawn still
    counts, or the same budget could be spent again and again."""

    def __init__(self) -> None:
        self._alone: defaultdict[str, dict[str, None]] = defaultdict(dict)  # by validator: digests of submissions

    def note(self, digest: str, verdicts: Mapping[str, Verdict], *, quorum: int) -> None:
        """Record that a verdict on this submission has arrived; `verdicts` are all current ones, by validator."""
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
