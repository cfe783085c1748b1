"""A relay flips bits in shards: the client fetches them from the next relay, and the checkpoint is exactly right."""

from __future__ import annotations

import random
from functools import partial
from pathlib import Path

import pytest

from dht.errors import TransportError
from roles.shardcast.manifest import manifest_digest
from tests.unit.roles.shardcast.network import (
    TRAINER,
    make_checkpoint,
    make_envelope,
    running_network,
    spoiled,
    stalling,
)


def flip_some(block: bytes, *, draw: random.Random) -> bytes:
    """One bit of one large block in two."""
    if len(block) < 10_000 or draw.random() < 0.5:
        return block
    at = draw.randrange(len(block))
    return block[:at] + bytes([block[at] ^ 1 << draw.randrange(8)]) + block[at + 1 :]


async def test_fetch_checkpoint__bit_flips_cost_a_shard_and_a_score(tmp_path: Path) -> None:
    source = make_checkpoint(tmp_path / "source", size=1_000_000)
    envelope = make_envelope(source)
    async with running_network(tmp_path, relays=1) as network:
        await network.add_relay(partial(spoiled, spoil=partial(flip_some, draw=random.Random(3))))
        await network.client(TRAINER).put_checkpoint(envelope, source)
        client, liar = network.client(relays=network.asked_first(1)), network.infos[1].node
        fetched = await client.fetch_checkpoint(manifest_digest(envelope), tmp_path / "into")
        assert client.link.choice.is_banned(liar)
        for path in source.iterdir():
            assert (fetched / path.name).read_bytes() == path.read_bytes()


async def test_fetch_checkpoint__only_liars_give_nothing(tmp_path: Path) -> None:
    source = make_checkpoint(tmp_path / "source")
    envelope = make_envelope(source)
    async with running_network(tmp_path, relays=0) as network:
        await network.add_relay(partial(spoiled, spoil=lambda b: b if len(b) < 10_000 else bytes(len(b))))
        await network.client(TRAINER).put_checkpoint(envelope, source)
        with pytest.raises(TransportError):
            await network.client().fetch_checkpoint(manifest_digest(envelope), tmp_path / "into")
    assert not (tmp_path / "into" / manifest_digest(envelope)).exists()


async def test_fetch_checkpoint__relay_that_goes_silent_midway(tmp_path: Path) -> None:
    source = make_checkpoint(tmp_path / "source", size=600_000)
    envelope = make_envelope(source)
    async with running_network(tmp_path, relays=1) as network:
        await network.add_relay(partial(stalling, after=20_000))
        await network.client(TRAINER).put_checkpoint(envelope, source)
        client = network.client(relays=network.asked_first(1))
        fetched = await client.fetch_checkpoint(manifest_digest(envelope), tmp_path / "into")
    assert (fetched / "model.safetensors").read_bytes() == (source / "model.safetensors").read_bytes()
