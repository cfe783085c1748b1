"""Blobs and checkpoints through real relays."""

from __future__ import annotations

from pathlib import Path

from dht.encoding import sha256
from roles.shardcast.manifest import manifest_digest
from tests.unit.roles.shardcast.network import TRAINER, make_checkpoint, make_envelope, running_network


async def test_put__held_by_two_relays_and_read_back(tmp_path: Path) -> None:
    async with running_network(tmp_path) as network:
        holders = await network.client().put(b"rollouts" * 1000)
        assert set(holders) == {info.node for info in network.infos}
        assert await network.client().get(sha256(b"rollouts" * 1000), limit=10_000) == b"rollouts" * 1000


async def test_fetch_checkpoint__bytes_equal(tmp_path: Path) -> None:
    source = make_checkpoint(tmp_path / "source")
    envelope = make_envelope(source)
    async with running_network(tmp_path) as network:
        holders = await network.client(TRAINER).put_checkpoint(envelope, source)
        assert len(holders) == 2
        fetched = await network.client().fetch_checkpoint(manifest_digest(envelope), tmp_path / "into")
    assert fetched == tmp_path / "into" / manifest_digest(envelope)
    for path in source.iterdir():
        assert (fetched / path.name).read_bytes() == path.read_bytes()
