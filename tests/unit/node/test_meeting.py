from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import cast

import pytest

from dht.directory import HivemindDirectory
from dht.encoding import encode
from dht.envelope import Envelope, seal
from dht.errors import TransportError
from dht.identity import NodeKey
from dht.peers import PeerInfo
from dht.records import unix_ms
from node.actors import LIFETIMES, LIMITS
from node.meeting import Meeting
from roles.messages import NodeRecord, nodes_key
from tests.unit.dht.conftest import free_port

RUN = "ab" * 32
KEY = nodes_key(RUN, "relay")


class Rows:
    """What the boards return."""

    def __init__(self, *rows: Envelope) -> None:
        self.rows = rows

    async def publish(self, row: Envelope) -> None:
        raise TransportError("read only")

    async def read(self, keys: Sequence[str]) -> Mapping[str, Sequence[Envelope]]:
        return {KEY: self.rows}


def everybody(node: str) -> bool:
    return True


class Dialled:
    """A directory that knows nobody, and the nodes it was asked to dial."""

    def __init__(self) -> None:
        self.addresses = list[str]()

    def peers(self) -> list[PeerInfo]:
        return []

    def add_peers(self, addresses: Sequence[str]) -> None:
        self.addresses += addresses


def record(key: NodeKey, *addresses: str) -> Envelope:
    said = NodeRecord(node=key.node, role="relay", addresses=addresses, software="x/1", boot="0" * 16, state="online")
    now = unix_ms()
    fields = {"run": RUN, "kind": "node/1", "record_key": KEY, "subkey": key.node, "sequence": now}
    return seal(key, expiration=now + 60_000, payload=encode(said), **fields)  # type: ignore[arg-type]


@pytest.fixture
async def halves(tmp_path: Path) -> AsyncIterator[list[tuple[NodeKey, HivemindDirectory]]]:
    """Two nodes that know nobody."""
    async with AsyncExitStack() as stack:
        made = []
        for number in range(2):
            key, folder = NodeKey.generate(), tmp_path / str(number)
            key.save(folder / "key")
            opening = HivemindDirectory.open(
                key_path=folder / "key",
                host_maddrs=[f"/ip4/127.0.0.1/tcp/{free_port()}"],
                initial_peers=[],
                run=RUN,
                limits=LIMITS,
                lifetimes=LIFETIMES,
                state_dir=folder,
            )
            made.append((key, await stack.enter_async_context(opening)))
        yield made


async def test_look__two_halves_become_one__boot_09(halves: list[tuple[NodeKey, HivemindDirectory]]) -> None:
    (_, one), (key, other) = halves
    meeting = Meeting(one, Rows(record(key, *other.addresses())), run=RUN, node=one.node_id, is_member=everybody)
    await meeting.look()
    async with asyncio.timeout(15):
        while not (one.stats()["table"] and other.stats()["table"]):  # noqa: ASYNC110 - p2pd's doing
            await asyncio.sleep(0.02)


async def test_look__addresses_of_somebody_else_are_not_dialled(
    halves: list[tuple[NodeKey, HivemindDirectory]],
) -> None:
    (_, one), (_, other) = halves
    liar = record(NodeKey.generate(), *other.addresses(), "/ip4/1.2.3.4/tcp/1", "rubbish")
    await Meeting(one, Rows(liar), run=RUN, node=one.node_id, is_member=everybody).look()
    assert one.peers() == []


async def test_look__strangers_do_not_choose_whom_all_dial() -> None:
    members, strangers = ([NodeKey.generate() for _ in range(5)] for _ in range(2))
    address = {key.node: f"/ip4/1.2.3.4/tcp/1/p2p/{key.node}" for key in (*members, *strangers)}
    rows = Rows(*(record(key, address[key.node]) for key in (*strangers, *members)))
    ours = {key.node for key in members}
    meeting = Meeting(
        cast(HivemindDirectory, dialled := Dialled()), rows, run=RUN, node="us", is_member=ours.__contains__
    )
    await meeting.look()
    assert {address[node] for node in ours} < set(dialled.addresses)
    assert len(dialled.addresses) == 6
