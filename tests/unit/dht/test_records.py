"""The publisher: sequences, expirations, republishing, retries."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from dht.envelope import Envelope
from dht.errors import IdentityError
from dht.identity import NodeKey
from dht.memory import FakeClock, Faults, MemoryDirectory, MemoryNetwork
from dht.records import SEQUENCE_BLOCK, Publisher, SequenceCounter

RUN = "ab" * 32
KEY = f"{RUN}/nodes/worker"


@pytest.fixture
def faults() -> Faults:
    return Faults()


@pytest.fixture
def directory(network: MemoryNetwork, faults: Faults) -> MemoryDirectory:
    return MemoryDirectory(network, faults=faults)


@pytest.fixture
def publisher(directory: MemoryDirectory, clock: FakeClock) -> Publisher:
    return Publisher(NodeKey(b"k" * 32), directory, run=RUN, state=None, clock=clock)


async def publish(publisher: Publisher, *, payload: bytes = b"{}", keep_seconds: int | None = None) -> Envelope:
    return await publisher.publish(
        kind="node/1", record_key=KEY, subkey=publisher.node, payload=payload, lifetime=90, keep_seconds=keep_seconds
    )


async def only_row(directory: MemoryDirectory) -> Envelope:
    (row,) = (await directory.read([KEY]))[KEY]
    return row


async def test_publish__row_is_readable(publisher: Publisher, directory: MemoryDirectory) -> None:
    row = await publish(publisher, payload=b"hello")
    assert await only_row(directory) == row
    assert publisher.unconfirmed == 0


async def test_is_confirmed__once_another_peer_showed_it__dht_17(publisher: Publisher, faults: Faults) -> None:
    faults.is_down = True
    await publish(publisher)
    assert not publisher.is_confirmed(KEY, publisher.node)
    faults.is_down = False
    await publisher.publish_due()
    assert not publisher.is_confirmed(KEY, publisher.node)  # its next attempt is not due yet
    await publish(publisher)
    assert publisher.is_confirmed(KEY, publisher.node)
    assert not publisher.is_confirmed(KEY, "somebody")


async def test_publish__again_replaces_and_rises(publisher: Publisher, directory: MemoryDirectory) -> None:
    first, second = await publish(publisher, payload=b"1"), await publish(publisher, payload=b"2")
    assert second.sequence > first.sequence
    assert second.expiration > first.expiration
    assert (await only_row(directory)).payload == b"2"


async def test_publish_due__again_after_a_third_of_the_lifetime(
    publisher: Publisher, directory: MemoryDirectory, clock: FakeClock
) -> None:
    first = await publish(publisher)
    clock.advance(29)
    assert await publisher.publish_due() == 0
    clock.advance(1)
    assert await publisher.publish_due() == 1
    again = await only_row(directory)
    assert (again.digest, again.sequence > first.sequence) == (first.digest, True)
    assert again.expiration == first.expiration + 30_000


async def test_publish_due__until_keep_seconds_have_passed(publisher: Publisher, clock: FakeClock) -> None:
    await publish(publisher, keep_seconds=45)
    clock.advance(30)
    assert await publisher.publish_due() == 1
    clock.advance(30)
    assert await publisher.publish_due() == 0


async def test_withdraw__no_more_publishing(publisher: Publisher, clock: FakeClock) -> None:
    await publish(publisher)
    publisher.withdraw(KEY, publisher.node)
    clock.advance(60)
    assert await publisher.publish_due() == 0


async def test_publish_due__failed_rows_are_tried_after_1_2_4_seconds_and_never_lost(
    publisher: Publisher, directory: MemoryDirectory, clock: FakeClock, faults: Faults
) -> None:
    faults.is_down = True
    await publish(publisher)
    tries = []
    for second in range(1, 8):
        clock.advance(1)
        if await publisher.publish_due():
            tries.append(second)
    assert tries == [1, 3, 7]
    faults.is_down = False
    clock.advance(8)
    await publisher.publish_due()
    assert publisher.unconfirmed == 0
    assert len((await directory.read([KEY]))[KEY]) == 1


async def test_publish_due__a_row_that_outlived_the_outage_is_sealed_anew(
    publisher: Publisher, directory: MemoryDirectory, clock: FakeClock, faults: Faults
) -> None:
    faults.is_down = True
    await publish(publisher)
    clock.advance(3600)
    faults.is_down = False
    await publisher.publish_due()
    assert (await only_row(directory)).expiration == clock.now + 90_000


async def test_publish_all_again__rows_a_network_lost_come_back__live_03(
    publisher: Publisher, network: MemoryNetwork, directory: MemoryDirectory, clock: FakeClock
) -> None:
    await publish(publisher)
    network.store = MemoryNetwork(run=RUN, limits={"node/1": 4096}, lifetimes={"node/1": 90}, clock=clock).store
    assert (await directory.read([KEY]))[KEY] == []
    publisher.publish_all_again()
    await publisher.publish_due()
    await only_row(directory)


async def test_publish__clock_set_back_still_rises(
    publisher: Publisher, directory: MemoryDirectory, clock: FakeClock
) -> None:
    first = await publish(publisher)
    clock.advance(-5)
    second = await publish(publisher)
    assert second.sequence > first.sequence
    assert second.expiration > first.expiration
    assert await only_row(directory) == second


@pytest.mark.parametrize("is_confirmed", [True, False])
async def test_publish_due__clock_corrected_by_an_hour__rows_come_back_at_once(
    publisher: Publisher, directory: MemoryDirectory, clock: FakeClock, faults: Faults, is_confirmed: bool
) -> None:
    """The clock was an hour ahead, then corrected. Otherwise nothing would be published for an hour, or with
    a lifetime that peers refuse."""
    faults.is_down = not is_confirmed
    first = await publish(publisher)
    faults.is_down = False
    clock.advance(-3600)
    assert await publisher.publish_due() == 1
    row = await only_row(directory)
    assert row.sequence > first.sequence
    assert row.expiration == clock() + 90_000


def test_sequence_counter__restart_never_repeats(tmp_path: Path, clock: FakeClock) -> None:
    used: list[int] = []
    for _ in range(3):  # three lives without a clean end, at the same moment
        counter = SequenceCounter(tmp_path / "sequence.json", clock)
        used += [counter.next() for _ in range(50)]
    assert len(set(used)) == 150
    assert used == sorted(used)


def test_sequence_counter__one_write_for_many_numbers(tmp_path: Path, clock: FakeClock) -> None:
    path = tmp_path / "sequence.json"
    counter = SequenceCounter(path, clock)
    counter.next()
    written = path.stat().st_ino
    for _ in range(SEQUENCE_BLOCK - 1):
        counter.next()
    assert path.stat().st_ino == written


@pytest.mark.parametrize("text", ["", "{", "[]", '{"reserved": null}', '{"reserved": "x"}'])
def test_sequence_counter__damaged_file_costs_a_gap_only(tmp_path: Path, clock: FakeClock, text: str) -> None:
    (tmp_path / "sequence.json").write_text(text)
    assert SequenceCounter(tmp_path, clock).next() > clock.now + SEQUENCE_BLOCK - 1


def test_sequence_counter__unwritable_folder_is_said(tmp_path: Path, clock: FakeClock) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(IdentityError, match="cannot write"):
        SequenceCounter(tmp_path / "file" / "sequence.json", clock).next()


def test_sequence_counter__what_a_failing_disk_did_not_take_is_reserved_with_the_next(
    tmp_path: Path, clock: FakeClock
) -> None:
    counter, in_the_way = SequenceCounter(tmp_path / "sequence.json", clock), tmp_path / ".sequence.json.tmp"
    in_the_way.mkdir()
    with pytest.raises(IdentityError, match="cannot write"):
        counter.next()
    in_the_way.rmdir()
    used = [counter.next() for _ in range(10)]
    assert SequenceCounter(tmp_path / "sequence.json", clock).next() > max(used)


def test_make_row__is_valid(make_row: Callable[..., Envelope], network: MemoryNetwork) -> None:
    assert network.store.put(make_row(), network.clock()).kept


async def test_run__brings_rows_back_by_itself(
    publisher: Publisher, directory: MemoryDirectory, clock: FakeClock, faults: Faults
) -> None:
    faults.is_down = True
    await publish(publisher)
    loop = asyncio.create_task(publisher.run())
    faults.is_down = False
    publisher.publish_all_again()
    async with asyncio.timeout(5):
        while publisher.unconfirmed:  # noqa: ASYNC110 - the loop under test gets its turns this way
            await asyncio.sleep(0)
    loop.cancel()
    with pytest.raises(asyncio.CancelledError):
        await loop
    await only_row(directory)


async def test_publish__a_short_life_still_expires_after_the_row_before(publisher: Publisher) -> None:
    first = await publish(publisher)
    offline = await publisher.publish(
        kind="node/1", record_key=KEY, subkey=publisher.node, payload=b"bye", lifetime=5, keep_seconds=0
    )
    assert offline.expiration == first.expiration + 1
