"""What the ledger and the fault book say about strikes: which were made, which nodes are due for
one, and what is at stake."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence

from ledger.records import Commit, HeldStrike, Registration, Stake, Strike
from roles.evidence import steps_dealt_with
from roles.liability import answers, keys_with_stake, opening_block, strikes_before, wallet_at_risk
from roles.tally.context import Bench
from roles.trusted import TrustedState
from roles.validator.faults import FaultBook, ProvenFault

MOST_FAULTS = 32
"""Maximum number of faults in one blob of evidence."""


class StrikeFacts:
    """A snapshot: `strikes` and `stakes` are the ledger's as last read."""

    def __init__(self, *, trusted: TrustedState, faults: FaultBook) -> None:
        self.strikes: Sequence[HeldStrike] = ()
        self.stakes: Mapping[tuple[str, str], Stake] = {}
        self._spec, self._trusted, self._faults = trusted.spec, trusted, faults

    def number(self, node: str) -> int:
        """How many strikes were made under this key, which is the number of its next one."""
        return sum(held.strike.node == node for held in self.strikes)

    def dealt_with(self, key: str) -> int:
        """The last step whose faults an earlier strike of the node has covered; -1 for none."""
        before = strikes_before(self.strikes, key, self.keys(key))
        return steps_dealt_with(before, self._commits(), async_level=self._spec.training.async_level)

    def _commits(self) -> Collection[Commit]:
        return self._trusted.view.commits.values() if self._trusted.view else ()

    def registration(self, key: str) -> Registration | None:
        """The registration of the node that has, or had, this key."""
        return self._trusted.view.registration_of(key) if self._trusted.view else None

    def keys(self, key: str) -> tuple[str, ...]:
        """Every key of the node that has, or had, this key."""
        held = self.registration(key)
        return held.keys if held else (key,)

    def _proven(self) -> dict[str, list[ProvenFault]]:
        """Faults that a quorum of the current validators found, by the node's current key, lowest step first."""
        bench, found = self.bench(), defaultdict[str, dict[tuple[int, int], ProvenFault]](dict)
        for kept in self._faults.faults.values():
            held, fault = self.registration(kept.submission.node), kept.said_by(bench)
            if held is not None and fault is not None:
                found[held.node].setdefault((fault.submission.step, fault.submission.index), fault)
        return {node: [places[place] for place in sorted(places)] for node, places in found.items()}

    def due(self) -> dict[str, list[ProvenFault]]:
        """Keys to be struck, with the faults that justify it. For a node with enough faults these are all its keys with
        stake to lose or, if no key has stake, its current key."""
        standing = {held.strike.node for held in self.strikes if held.outcome != "lifted"}
        found: dict[str, list[ProvenFault]] = {}
        for node, faults in self._proven().items():
            for key in self.keys(node):
                after = self.dealt_with(key)
                counted = [fault for fault in faults if fault.submission.step > after]
                if len(counted) < self._spec.checks.strikes_to_eject or key in standing:
                    continue
                staked = self._keys_with_stake(key, counted)
                if key in staked or (key == node and not staked and standing.isdisjoint(self.keys(node))):
                    found[key] = counted[:MOST_FAULTS]
        return found

    def _keys_with_stake(self, key: str, faults: Sequence[ProvenFault]) -> tuple[str, ...]:
        held = self.registration(key)
        return keys_with_stake(held, self.wallet(key, faults), self.stakes) if held else ()

    def wallet(self, key: str, faults: Sequence[ProvenFault]) -> str | None:
        """The wallet to be named in the strike: see `roles.liability`."""
        held, since = self.registration(key), self._opening_block(fault.submission.step for fault in faults)
        return wallet_at_risk(held, since=since, stakes=self.stakes) if held else None

    def may_name(self, strike: Strike, steps: Iterable[int]) -> bool:
        """Whether the wallet that a strike names is liable for faults of these steps."""
        held, since = self.registration(strike.node), self._opening_block(steps)
        return held is not None and answers(strike.wallet, held, since=since, stakes=self.stakes)

    def _opening_block(self, steps: Iterable[int]) -> int:
        return opening_block(steps, self._commits(), async_level=self._spec.training.async_level)

    def bench(self) -> Bench:
        """The validators that judge now."""
        validators = [item.node for item in self._trusted.judges]
        return Bench(self._trusted.run, self._spec.buckets, validators, self._trusted.quorum)
