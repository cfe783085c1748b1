"""The leader's lease: renewed while no commit does it, and the first to notice that somebody else leads."""

from __future__ import annotations

import asyncio

import structlog

from ledger.errors import LedgerError
from ledger.records import Lease
from roles.observer import Observer
from roles.ports import Clock, Ledger
from roles.trainer.errors import Fenced
from roles.trusted import TrustedState

log = structlog.get_logger()

IDLE_SECONDS = 0.5
RENEW_TIMEOUT = 60.0
RENEWAL_SEEN_MS = 5_000
"""How long a renewal that was sent is looked for before the next: our view may lag."""


def is_due(lease: Lease, *, now: int, seconds: int) -> bool:
    """Whether a third of the lease has passed (chain seconds). One that has not begun is never due."""
    return lease.until > 0 and now >= lease.until - seconds * 2 // 3


class LeaseKeeper:
    """Keeps the lease of one term."""

    def __init__(
        self, *, term: int, node: str, trusted: TrustedState, observer: Observer, ledger: Ledger, clock: Clock
    ) -> None:
        self._term, self._node = term, node
        self._trusted, self._ledger, self._clock = trusted, ledger, clock
        self._watch = observer.watch()
        # the lease as it was when we last sent a renewal, and until when (unix ms) its effect is waited for
        self._renewed: Lease | None = None
        self._quiet_until = 0
        self._said = ""

    async def run(self) -> None:
        """Renew the lease when due, until cancelled. Raises Fenced once the ledger shows another leader or term."""
        while True:
            self.check()
            await self.renew_if_due()
            await self._watch.changed(IDLE_SECONDS)

    def check(self) -> None:
        """Raises Fenced when, by the ledger as last seen, this term is over."""
        lease = self._trusted.lease
        if lease is not None and (lease.term, lease.leader) != (self._term, self._node):
            raise Fenced(f"{lease.leader} leads term {lease.term} of the run, this trainer led term {self._term}")

    async def renew_if_due(self) -> None:
        """Send a renewal when a third of the lease has passed and none is on its way."""
        view, lease, now = self._trusted.view, self._trusted.lease, self._clock()
        if (
            view is None
            or lease is None
            or (lease == self._renewed and now < self._quiet_until <= now + RENEWAL_SEEN_MS)
        ):
            return
        if not is_due(lease, now=view.head.timestamp, seconds=view.terms.lease_seconds):
            return
        try:
            async with asyncio.timeout(RENEW_TIMEOUT):
                await self._ledger.renew()
        except (LedgerError, TimeoutError) as error:  # a refusal too: whether the term is over, `check` sees
            why = str(error) or "the ledger does not answer"
            if why != self._said:
                log.warning("lease.unrenewed", term=self._term, why=why)
            self._said = why
            return
        self._said, self._renewed, self._quiet_until = "", lease, now + RENEWAL_SEEN_MS
        log.info("lease.renewed", term=self._term)
