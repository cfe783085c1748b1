"""News of checkpoints: a request held open at a few relays, answered as soon as one of them has another manifest.

A relay's answer is only a hint; whoever acts on it fetches and judges the signed manifest. A relay that answers at once
without news is asked less and less often.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from dht.errors import PeerError, TransportError
from roles.shardcast.link import RelayLink
from roles.shardcast.replies import HELD_OPEN, DeltaHint, Offer, RelayInfo

ASKED = 2
"""Number of relays asked at once."""
TURN = 60.0
"""Seconds until other relays are drawn, so that one that withholds news is not relied on for ever."""
FIRST_PAUSE, LONGEST_PAUSE, NOBODY_PAUSE = 0.05, 5.0, 1.0
MOST_TOLD = 256
"""Number of past offers remembered, so that each is reported once."""


@dataclass(frozen=True, slots=True)
class Offered:
    """A checkpoint that a relay claims to have, not verified. `relay` is its id."""

    manifest: str
    step: int
    relay: str


class Subscription:
    """Reports each checkpoint once, whichever relay announces it first. `held` returns the manifest digest that this
    node has now, empty when none. Relays count what their readers have, and list the deltas that start from exactly
    that; `leading_on` is called with those."""

    def __init__(
        self,
        link: RelayLink,
        told: Callable[[Offered], None],
        *,
        held: Callable[[], str] = lambda: "",
        leading_on: Callable[[Iterable[DeltaHint]], None] = lambda hints: None,
    ) -> None:
        self._link, self._told, self._held, self._leading_on = link, told, held, leading_on
        self._known: dict[str, None] = {}
        self._busy: set[str] = set()

    async def run(self) -> None:
        """Ask until cancelled."""
        async with asyncio.TaskGroup() as group:
            for _ in range(ASKED):
                group.create_task(self._sit())

    async def _sit(self) -> None:
        """Subscribe at one relay after another, never at one where another task is subscribed."""
        pause = FIRST_PAUSE
        while True:
            relay = next((one for one in self._link.order() if one.node not in self._busy), None)
            if relay is None:
                await asyncio.sleep(NOBODY_PAUSE)
                continue
            self._busy.add(relay.node)
            try:
                pause = FIRST_PAUSE if await self._ask(relay) else min(2 * pause, LONGEST_PAUSE)
            finally:
                self._busy.discard(relay.node)
            await asyncio.sleep(pause)

    async def _ask(self, relay: RelayInfo) -> bool:
        """Keep a request open at the relay for a turn. Returns whether it answered any."""
        token, pause, until = "", FIRST_PAUSE, time.monotonic() + TURN
        while time.monotonic() < until:
            asked = time.monotonic()
            try:
                news = await self._link.read_news(relay, known=token, held=self._held(), wait=HELD_OPEN)
            except (PeerError, TransportError):
                return token != ""
            self._leading_on(news.deltas)  # first, because the listener fetches at once
            is_news = self._tell(relay, news.offers)
            was_held = time.monotonic() - asked > HELD_OPEN / 2
            token, pause = news.token, FIRST_PAUSE if is_news or was_held else min(2 * pause, LONGEST_PAUSE)
            await asyncio.sleep(pause)
        return True

    def _tell(self, relay: RelayInfo, offers: Iterable[Offer]) -> bool:
        fresh = [offer for offer in offers if offer.manifest not in self._known]
        for offer in fresh:
            self._known[offer.manifest] = None
            while len(self._known) > MOST_TOLD:
                del self._known[next(iter(self._known))]
            self._told(Offered(offer.manifest, offer.step, relay.node))
        return bool(fresh)
