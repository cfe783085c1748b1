"""A trainer that does not lead: it fetches each checkpoint, watches the lease, and takes over when the leader is gone.

The order of the trainers in the run decides who takes over when. The next after the leader may do so once the
lapse has been visible for the run's number of blocks, the one after that a lease later, and so on. The
contract accepts one of them.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import structlog

from dht.errors import NodeError
from ledger.errors import LedgerError, LedgerRejected
from ledger.records import Commit, Lease
from roles.context import RunContext
from roles.ports import Ledger
from roles.shardcast.assembly import prune_checkpoints
from roles.terms import distance
from roles.trainer.lease import RENEW_TIMEOUT, RENEWAL_SEEN_MS
from roles.trainer.tallied import is_tallied
from roles.trusted import LedgerView

log = structlog.get_logger()

IDLE_SECONDS = 0.5
FETCH_TIMEOUT = 3600.0
RETRY_SECONDS = 2.0


class StandBy:
    """Stands by in one run; checkpoints go to `following`. It waits up to `linger` seconds for the last tally."""

    def __init__(self, context: RunContext, *, ledger: Ledger, following: Path, linger: float) -> None:
        self._node, self._trusted, self._observer = context.node, context.trusted, context.observer
        self._ledger, self._relays, self._following = ledger, context.relays, following
        self._clock, self._linger = context.clock, linger
        self._watch = context.observer.watch()
        # the last action and the lease it was about, and until when (unix ms) its effect is awaited
        self._done: tuple[Lease, str] | None = None
        self._quiet_until, self._said = 0, ""
        self._ended_at: int | None = None

    async def run(self) -> bool:
        """Follow until the lease is ours. Returns False when the run is over instead."""
        self._say_whom()
        async with asyncio.TaskGroup() as group:
            following = group.create_task(self._follow())
            try:
                return await self._until_leading()
            finally:
                following.cancel()

    def _say_whom(self) -> None:
        log.info("trainer.standing_by", leader=self._trusted.leader(), term=self._trusted.term)

    # -- the lease -------------------------------------------------------------------------------------------------

    async def _until_leading(self) -> bool:
        term = self._trusted.term
        while self._trusted.leader() != self._node:
            if self._trusted.term != term:
                term = self._trusted.term
                self._say_whom()
            if await self._is_over():
                return False
            await self._mind_the_lease()
            self._forget()
            await self._watch.changed(IDLE_SECONDS)
        return True

    async def _mind_the_lease(self) -> None:
        """Report the lapse, then take over, each as soon as possible. What the ledger refuses is tried again."""
        view, lease, now = self._trusted.view, self._trusted.lease, self._clock()
        newest = self._trusted.newest_commit()
        if view is None or lease is None or self._observer.ledger_down or (newest is not None and newest.final):
            return
        act = next_act(lease, view=view, node=self._node)
        if act is None or ((lease, act) == self._done and now < self._quiet_until <= now + RENEWAL_SEEN_MS):
            return
        self._done, self._quiet_until = (lease, act), now + RENEWAL_SEEN_MS
        try:
            async with asyncio.timeout(RENEW_TIMEOUT):
                await (self._ledger.report_lapse() if act == "report" else self._ledger.take_over())
        except (LedgerError, TimeoutError) as error:
            self._say_refusal(act, error)
            return
        if act == "report":
            log.warning("lease.lapsed", leader=lease.leader, term=lease.term)
        else:
            log.warning("lease.taken_over", leader=lease.leader, term=lease.term + 1)

    def _say_refusal(self, act: str, error: Exception) -> None:
        why = str(error) or "the ledger does not answer"
        if why != self._said:  # a leader that has renewed meanwhile is not a problem
            (log.info if isinstance(error, LedgerRejected) else log.warning)("lease.kept", act=act, why=why)
        self._said = why

    # -- following -------------------------------------------------------------------------------------------------

    async def _follow(self) -> None:
        """Fetch each newest committed checkpoint until cancelled, so that nothing is left to fetch at a take-over."""
        watch, held = self._observer.watch(), ""
        while True:
            commit = self._trusted.newest_commit()
            if commit is not None and commit.manifest != held and await self._fetch(commit):
                held = commit.manifest
                await asyncio.to_thread(prune_checkpoints, self._following, keep={held})
            await watch.changed(RETRY_SECONDS)

    async def _fetch(self, commit: Commit) -> bool:
        try:
            async with asyncio.timeout(FETCH_TIMEOUT):
                await self._relays.fetch_checkpoint(commit.manifest, self._following)
        except (NodeError, TimeoutError) as error:
            log.warning("weights.unreachable", policy_step=commit.step, why=str(error) or "no answer in time")
            return False
        log.info("weights.fetched", policy_step=commit.step)
        return True

    def _forget(self) -> None:
        head = self._trusted.head
        if head is not None:
            self._trusted.forget_before(head.step - self._trusted.spec.training.async_level - 1)

    async def _is_over(self) -> bool:
        """Whether the last checkpoint is committed, and tallied or waited for long enough."""
        newest = self._trusted.newest_commit()
        if newest is None or not newest.final:
            return False
        self._ended_at = self._ended_at or self._clock()
        return self._clock() - self._ended_at > self._linger * 1000 or await is_tallied(self._ledger, newest)


def next_act(lease: Lease, *, view: LedgerView, node: str) -> str | None:
    """What a stand-by may do about the lease now: "report" that it has expired, "take
    over", or None for nothing yet."""
    now, terms = view.head.timestamp, view.terms
    if not lease.until or now <= lease.until:
        return None
    if not lease.lapse_block:
        return "report"
    place = distance(node, leader=lease.leader, trainers=terms.trainers)
    is_seen = view.head.number >= lease.lapse_block + terms.takeover_blocks
    return "take over" if is_seen and now > lease.until + (place - 1) * terms.lease_seconds else None
