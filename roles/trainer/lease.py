"""The leader's lease: renewed when no commit does so. This is where another leader is first noticed."""

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
"""How long a renewal is given to show up before the next is sent: our view may lag."""


def is_due(lease: Lease, *, now: int, seconds: int) -> bool:
    """Whether a third of the lease has passed (chain seconds). A lease that has not begun is never due."""
    return lease.until > 0 and now >= lease.until - seconds * 2 // 3


class LeaseKeeper:
    """Renews the lease during one term."""

    def __init__(
        self, *, term: int, node: str, trusted: TrustedState, observer: Observer, ledger: Ledger, clock: Clock
    ) -> None:
        self._term, self._node = term, node
        self._trusted, self._ledger, self._clock = trusted, ledger, clock
        self._watch = observer.watch()
        # the lease at the time of our last renewal, and until when (unix ms) its effect is awaited
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
        """Raises Fenced when this term is over according to our latest view of the ledger."""
        lease = self._trusted.lease
        if lease is not None and (lease.term, lease.leader) != (self._term, self._node):
            raise Fenced(f"{lease.leader} leads term {lease.term} of the run, this trainer led term {self._term}")

    async def renew_if_due(self) -> None:
        """Send a renewal when a third of the lease has passed and none is pending."""
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
        except (LedgerError, TimeoutError) as error:  # includes refusals: `check` finds out whether the term is over
            why = str(error) or "the ledger does not answer"
            if why != self._said:
                log.warning("lease.unrenewed", term=self._term, why=why)
            self._said = why
            return
        self._said, self._renewed, self._quiet_until = "", lease, now + RENEWAL_SEEN_MS
        log.info("lease.renewed", term=self._term)
