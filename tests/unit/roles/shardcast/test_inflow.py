"""A reader that is woken for many bytes at once, and never waits for bytes that do not come."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path
from select import POLLIN, poll

import pytest

from roles.shardcast.inflow import BLOCK, LOW_WATER, LowWater
from roles.shardcast.manifest import manifest_digest
from tests.unit.roles.shardcast.network import TRAINER, make_checkpoint, make_envelope, running_network


@pytest.fixture
def line() -> Iterator[tuple[socket.socket, socket.socket]]:
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.create_connection(listener.getsockname()) as near:
        far, _ = listener.accept()
        with far:
            yield near, far


def is_woken(sock: socket.socket) -> bool:
    waiting = poll()
    waiting.register(sock, POLLIN)
    return bool(waiting.poll(50))


def test_before__reader_sleeps_until_much_is_there(line: tuple[socket.socket, socket.socket]) -> None:
    near, far = line
    LowWater(near).before(left=2 * BLOCK)
    far.sendall(bytes(LOW_WATER - 1))
    assert not is_woken(near)
    far.sendall(b"1")
    assert is_woken(near)


def test_before__the_last_bytes_wake_it_each(line: tuple[socket.socket, socket.socket]) -> None:
    near, far = line
    level = LowWater(near)
    level.before(left=2 * BLOCK)
    level.before(left=BLOCK)
    far.sendall(b"1")
    assert is_woken(near)


@pytest.mark.parametrize("size", [BLOCK - 1, BLOCK + LOW_WATER - 1, BLOCK + LOW_WATER, 3 * BLOCK + 7])
async def test_shard_of_any_size__goes_up_and_down_whole(tmp_path: Path, size: int) -> None:
    source = make_checkpoint(tmp_path / "source", size=size)
    envelope = make_envelope(source, shard_size=size)
    async with running_network(tmp_path, relays=1) as network:
        await network.client(TRAINER).put_checkpoint(envelope, source)
        fetched = await network.client().fetch_checkpoint(manifest_digest(envelope), tmp_path / "into")
    assert all((fetched / path.name).read_bytes() == path.read_bytes() for path in source.iterdir())
