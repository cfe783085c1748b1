"""Adds final tallies to a story, from the ledger and tally blobs: the credited submissions, and what wallets hold."""

from __future__ import annotations

from collections.abc import Sequence

from ledger.client import LedgerClient
from ledger.records import FinalRoot, by_any_key
from node.contributions import Contributions, Get, read_final, worker_units
from node.status.story import Story
from roles.spec import RunSpec
from roles.tally import TallyBody, open_final_tally
from roles.tally.items import submissions_of

NEWEST = 4
"""Tallies read at the first look; a long run has thousands."""


class Credits:
    """Adds each final tally to a story once."""

    def __init__(self, story: Story, spec: RunSpec) -> None:
        self._story, self._spec = story, spec
        self._epoch = -1

    async def tell_places(self, roots: Sequence[FinalRoot], get: Get) -> None:
        """Add the submissions that new tallies credit. Raises NodeError."""
        for root in roots[-NEWEST:]:
            if root.epoch > self._epoch:
                body = open_final_tally(await get(root.blob), root)
                self._epoch = root.epoch
                self._story.describe(epoch=root.epoch)
                self._story.credit(root.epoch, credited_places(body, self._spec))

    async def tell_all(self, ledger: LedgerClient, get: Get) -> None:
        """The same, plus what each wallet holds, when there is a new tally. Raises
        NodeError, LedgerError, ConfigError."""
        roots = await ledger.final_roots()
        if not roots or roots[-1].epoch <= self._epoch:
            return
        root, body = await read_final(ledger, get)
        final = worker_units(body) if body else {}
        totals = Contributions(root, final, {}, by_any_key(await ledger.registrations())).by_wallet()
        self._story.set_wallets({wallet: {"final": units} for wallet, (units, _) in totals.items()})
        await self.tell_places(roots, get)


def credited_places(body: TallyBody, spec: RunSpec) -> list[tuple[str, int, int]]:
    """Node, step and index of each submission that a tally credits."""
    return [(each.node, each.step, each.index) for each in submissions_of(body.items, spec)]
