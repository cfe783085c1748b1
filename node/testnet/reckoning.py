"""A testnet's contributions according to the ledger, read while it runs and compared at
its end with what was observed."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping

from dht.errors import NodeError, TransportError
from ledger.client import LedgerClient
from ledger.errors import LedgerError
from node.contributions import Contributions, linked_wallet, read_final, tally_blobs, tokens_by_wallet, worker_units
from node.errors import ConfigError
from node.testnet.outcome import Outcome
from node.testnet.page import TestnetPage
from node.testnet.picture import Picture
from roles.shardcast.client import RelayClient

LEDGER_SECONDS = 1.5
"""Interval between reads of the ledger for the display."""


class Reckoning:
    """Contributions by node and wallet: the ledger's tallies, and what is not tallied yet."""

    def __init__(self, ledger: LedgerClient, client: RelayClient, picture: Picture, page: TestnetPage) -> None:
        self._ledger, self._get, self._picture, self._page = ledger, tally_blobs(client), picture, page
        self.block = 0
        self._contributions: Contributions | None = None

    def by_wallet(self) -> Mapping[str, tuple[int, int]]:
        """Units by wallet: final, and still to be tallied."""
        return self._contributions.by_wallet() if self._contributions else {}

    async def watch(self) -> None:
        """Read periodically until cancelled."""
        while True:
            with contextlib.suppress(NodeError, LedgerError):
                await self._read()
            await asyncio.sleep(LEDGER_SECONDS)

    async def _read(self) -> None:
        self.block = (await self._ledger.head()).number
        roots = await self._ledger.final_roots()
        before = self._contributions
        final = dict(before.final) if before else {}
        root = before.root if before else None
        if roots and (root is None or root.epoch != roots[-1].epoch):
            root, body = await read_final(self._ledger, self._get)
            final = worker_units(body) if body else {}
        registrations = await self._ledger.registrations()
        credited: dict[str, int] = {}
        for (node, _), units in final.items():
            credited[node] = credited.get(node, 0) + units
        pending = {
            (node, linked_wallet(node, registrations)): count - credited.get(node, 0)
            for node, count in self._picture.tokens.items()
        }
        self._contributions = Contributions(root, final, pending, registrations)
        await self._page.credit(roots, self._get)

    async def judge(self, outcome: Outcome) -> None:
        """Compare the ledger with the submissions observed to be accepted."""
        try:
            await self._read()
            registrations = await self._ledger.registrations()
        except (TransportError, LedgerError, ConfigError) as error:
            outcome.faults.append(f"the tally could not be read: {error}")
            return
        found = self._contributions
        final = {wallet: units for wallet, (units, _) in (found.by_wallet() if found else {}).items()}
        seen = tokens_by_wallet(self._picture.tokens, registrations)
        total = sum(found.final.values()) if found else 0
        if sum(final.values()) != total or (sum(seen.values()) != total):
            outcome.faults.append(
                f"the ledger's tally says {total} tokens, wallets hold {sum(final.values())}, accepted were {sum(seen.values())}"
            )
        else:
            outcome.notes.insert(0, f"they equal the ledger's tally ({total} tokens) and the verdicts seen")
