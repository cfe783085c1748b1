"""Receipts: a client's statement about a checkpoint it has fetched, made once, and again after a restart."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from dht.identity import NodeKey
from dht.memory import MemoryDirectory, MemoryNetwork
from dht.records import Publisher
from roles.announce import Voice
from roles.messages import ROW_RULES, Receipt, ReceivedShare, open_row, receipts_key
from roles.receipts import MOST_RELAYS, Receipts, build_receipt
from tests.builders import WORKERS, MemoryRelays, make_spec, manifest_of, node_key

CLIENT = WORKERS[0]
FIRST, SECOND = sorted((node_key(31).node, node_key(32).node))
SPEC = make_spec()


class Scene:
    """A client, relays that served it, and the directory its rows go to."""

    def __init__(self, folder: Path) -> None:
        self.relays, self.folder = MemoryRelays(), folder
        self.network = MemoryNetwork(
            run=SPEC.run_id,
            limits={kind: rule.max_bytes for kind, rule in ROW_RULES.items()},
            lifetimes={kind: rule.lifetime for kind, rule in ROW_RULES.items()},
        )

    @asynccontextmanager
    async def client(self, key: NodeKey = CLIENT) -> AsyncIterator[Receipts]:
        """The client's receipts, being written and published."""
        directory = MemoryDirectory(self.network)
        voice = Voice(Publisher(key, directory, run=SPEC.run_id, state=None), node=key.node, spec=SPEC)
        receipts = Receipts(relays=self.relays, voice=voice, folder=self.folder, run=SPEC.run_id)
        async with asyncio.TaskGroup() as group:
            task = group.create_task(receipts.run())
            yield receipts
            task.cancel()

    async def said(self, step: int) -> Receipt:
        """The receipt in the directory, once it is there."""
        key = receipts_key(SPEC.run_id, step, 0)
        async with asyncio.timeout(5):
            while not (rows := (await MemoryDirectory(self.network).read([key])).get(key)):  # noqa: ASYNC110 - it has no events
                await asyncio.sleep(0.01)
        message = open_row(rows[0], run=SPEC.run_id, buckets=SPEC.buckets)
        assert isinstance(message, Receipt)
        return message


async def test_note__says_which_relay_gave_how_much(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    scene.relays.served[manifest_of(3)] = {SECOND: 200, FIRST: 100}
    async with scene.client() as receipts:
        receipts.note(3, manifest_of(3))
        found = await scene.said(3)
    assert found.client == CLIENT.node
    assert found.shares == (ReceivedShare(relay=FIRST, size=100), ReceivedShare(relay=SECOND, size=200))


async def test_run__a_restart_says_it_again_and_never_otherwise(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    scene.relays.served[manifest_of(3)] = {FIRST: 100}
    async with scene.client() as receipts:
        receipts.note(3, manifest_of(3))
        before = await scene.said(3)
    (tmp_path / "4").write_bytes(b"half a rec")
    scene.network = Scene(tmp_path).network  # the directory has forgotten
    async with scene.client():
        assert await scene.said(3) == before


async def test_note__nothing_came_from_relays__nothing_is_said(tmp_path: Path) -> None:
    async with Scene(tmp_path).client() as receipts:
        receipts.note(3, manifest_of(3))
    assert not await asyncio.to_thread(lambda: list(tmp_path.iterdir()))


def test_build_receipt__names_the_relays_that_gave_most() -> None:
    received = {node_key(number).node: number for number in range(1, MOST_RELAYS + 3)}
    receipt = build_receipt(received, run=SPEC.run_id, client=CLIENT.node, step=1)
    assert receipt is not None
    assert min(share.size for share in receipt.shares) == 3
    assert len(receipt.shares) == MOST_RELAYS


async def test_run__after_its_key_was_replaced__says_what_the_new_one_fetches(tmp_path: Path) -> None:
    before, after = Scene(tmp_path), Scene(tmp_path)
    before.relays.served[manifest_of(3)] = after.relays.served[manifest_of(4)] = {FIRST: 100}
    async with before.client() as receipts:
        receipts.note(3, manifest_of(3))
        await before.said(3)
    new = node_key(24)
    async with after.client(new) as receipts:
        receipts.note(4, manifest_of(4))
        assert (await after.said(4)).client == new.node
        key = receipts_key(SPEC.run_id, 3, 0)
        assert not (await MemoryDirectory(after.network).read([key]))[key]
