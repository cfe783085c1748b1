"""The in-memory directory refuses what the real one refuses, and fails as configured."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from dht.envelope import Envelope
from dht.errors import TransportError
from dht.memory import FakeClock, Faults, MemoryDirectory, MemoryNetwork

MakeRow = Callable[..., Envelope]


async def test_publish__every_directory_sees_it(network: MemoryNetwork, make_row: MakeRow) -> None:
    row = make_row()
    await MemoryDirectory(network).publish(row)
    assert await MemoryDirectory(network).read([row.key, "unknown"]) == {row.key: [row], "unknown": []}


async def test_read__expired_rows_are_gone__dht_26(network: MemoryNetwork, make_row: MakeRow, clock: FakeClock) -> None:
    row = make_row()
    await MemoryDirectory(network).publish(row)
    clock.advance(60)
    assert await MemoryDirectory(network).read([row.key]) == {row.key: []}


@pytest.mark.parametrize("fields", [{"run": "cd" * 32}, {"kind": "poem/1"}, {"expiration": 2**62}])
async def test_publish__what_peers_would_refuse(
    network: MemoryNetwork, make_row: MakeRow, fields: dict[str, object]
) -> None:
    with pytest.raises(TransportError, match="refused"):
        await MemoryDirectory(network).publish(make_row(**fields))


async def test_faults__down(network: MemoryNetwork, make_row: MakeRow) -> None:
    directory = MemoryDirectory(network, faults=Faults(is_down=True))
    with pytest.raises(TransportError):
        await directory.publish(make_row())
    with pytest.raises(TransportError):
        await directory.read([make_row().key])


async def test_faults__delayed_rows_appear_later(network: MemoryNetwork, make_row: MakeRow, clock: FakeClock) -> None:
    directory, key = MemoryDirectory(network, faults=Faults(delay_ms=5000)), make_row().key
    with pytest.raises(TransportError, match="yet"):
        await directory.publish(make_row())
    assert (await directory.read([key]))[key] == []
    clock.advance(5)
    assert (await directory.read([key]))[key] == [make_row()]


async def test_faults__drops_and_order_follow_the_seed(network: MemoryNetwork, make_row: MakeRow) -> None:
    for number in range(1, 21):
        await MemoryDirectory(network).publish(make_row(number))
    key = make_row().key

    async def seen(seed: int) -> list[Envelope]:
        faults = Faults(drop_rate=0.5, reorder=True, seed=seed)
        return (await MemoryDirectory(network, faults=faults).read([key]))[key]

    first = await seen(1)
    assert first == await seen(1) != await seen(2)
    assert 0 < len(first) < 20
    assert first != sorted(first, key=lambda row: row.subkey)
