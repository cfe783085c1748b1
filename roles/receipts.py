"""Receipts: a client that has downloaded a checkpoint states which relays its bytes came from,
so that they are credited.

There is one signed row per client and checkpoint, written to disk before it is announced. What relays can be
paid for is limited where receipts are counted (`roles.tally.receipts`): nobody gains by signing for more
bytes than a checkpoint has.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path

import structlog

from dht.disk import make_folder, write_durably
from dht.encoding import decode, encode
from dht.errors import Malformed, TransportError
from roles.announce import Voice
from roles.messages import Receipt, ReceivedShare
from roles.ports import Relays

log = structlog.get_logger()

MOST_RELAYS = 24
KEPT = 64
"""Number of receipts kept and announced again after a restart: those of the newest checkpoints."""


class Receipts:
    """The receipts of one client in one run, in its own `folder`. `note` records a download;
    `run` writes and announces."""

    def __init__(self, *, relays: Relays, voice: Voice, folder: Path, run: str) -> None:
        self._relays, self._voice, self._folder, self._run = relays, voice, folder, run
        self._said: dict[int, Receipt] = {}
        self._queue: asyncio.Queue[Receipt] = asyncio.Queue()

    def note(self, step: int, manifest: str) -> None:
        """Record that a checkpoint was fetched: its receipt is due if any of it came from relays."""
        receipt = build_receipt(self._relays.received(manifest), run=self._run, client=self._voice.node, step=step)
        if receipt is not None and step not in self._said:
            self._said[step] = receipt
            self._queue.put_nowait(receipt)

    async def run(self) -> None:
        """Announce the receipts kept from before a restart, then each one noted, until cancelled."""
        for receipt in await asyncio.to_thread(_load, self._folder):
            if receipt.client != self._voice.node:  # signed with a key that has been replaced
                continue
            self._said.setdefault(receipt.step, receipt)
            await self._announce(receipt)
        while True:
            receipt = await self._queue.get()
            try:
                await asyncio.to_thread(_save, self._folder, receipt)
                await self._announce(receipt)
                await self._forget()
            except OSError as error:  # a full disk only costs a relay some credit
                log.warning("receipt.unsaved", step=receipt.step, why=str(error))

    async def _announce(self, receipt: Receipt) -> None:
        try:
            await self._voice.announce(receipt)
        except TransportError as error:  # the publisher keeps trying
            log.debug("receipt.delayed", step=receipt.step, why=str(error))
            return
        log.debug(
            "receipt.signed",
            step=receipt.step,
            relays=len(receipt.shares),
            size=sum(share.size for share in receipt.shares),
        )

    async def _forget(self) -> None:
        for step in sorted(self._said)[:-KEPT]:
            self._voice.withdraw(self._said.pop(step))
            await asyncio.to_thread((self._folder / str(step)).unlink, missing_ok=True)


def build_receipt(received: Mapping[str, int], *, run: str, client: str, step: int) -> Receipt | None:
    """The receipt for the bytes received by relay: the relays that gave most, ordered by id.
    None when there are none."""
    most = sorted(((size, relay) for relay, size in received.items() if size > 0), reverse=True)[:MOST_RELAYS]
    if not most:
        return None
    shares = tuple(
        ReceivedShare(relay=relay, size=size) for relay, size in sorted((relay, size) for size, relay in most)
    )
    return Receipt(run=run, client=client, step=step, shares=shares)


def _save(folder: Path, receipt: Receipt) -> None:
    make_folder(folder)
    write_durably(folder / str(receipt.step), encode(receipt))


def _load(folder: Path) -> list[Receipt]:
    found: list[Receipt] = []
    for path in folder.iterdir() if folder.is_dir() else ():
        if not path.name.isdigit():
            continue
        try:
            found.append(decode(Receipt, path.read_bytes()))
        except (Malformed, OSError) as error:  # it only costs a relay some credit
            log.warning("receipt.damaged", file=path.name, why=str(error))
    return sorted(found, key=lambda receipt: receipt.step)[-KEPT:]
