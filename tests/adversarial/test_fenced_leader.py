"""A leader that lost its lease continues as if it had not: relays neither accept nor spread what it makes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dht.encoding import encode
from dht.envelope import Envelope, seal
from dht.identity import NodeKey
from roles.messages import CheckpointRow, checkpoints_key, subkey_for
from roles.relay import Relay
from roles.shardcast.manifest import manifest_digest, seal_manifest
from tests.adversarial.test_manifest_rollback import kept, put
from tests.builders import TRAINER, World
from tests.unit.roles.relay.test_pulling import Rows, pulling
from tests.unit.roles.shardcast.network import (
    RUN,
    Network,
    make_checkpoint,
    make_manifest,
    running_network,
    wait_until,
)
from tests.unit.roles.test_terms import SECOND, world_of_two


def manifest_of_term(folder: Path, *, step: int, term: int) -> Envelope:
    """A manifest by the leader of that term."""
    manifest = make_manifest(make_checkpoint(folder, seed=term), step=step).model_copy(update={"term": term})
    return seal_manifest((TRAINER, SECOND)[term - 1], manifest)


async def add_relay(network: Network, world: World, **changes: Any) -> Relay:
    return await network.add_relay(
        trainers=[TRAINER.node, SECOND.node], term_rule=world.trusted.check_checkpoint, **changes
    )


async def test_put_manifest__of_a_fenced_leader_refused(tmp_path: Path) -> None:
    old, new = (manifest_of_term(tmp_path / f"{term}", step=3, term=term) for term in (1, 2))
    async with running_network(tmp_path, relays=0) as network:
        await add_relay(network, world_of_two(2))
        reply = await put(network, old, key=TRAINER)
        assert (reply.status_code, reply.json()["error"]) == (403, "old_term")
        assert kept(network) == []
        assert (await put(network, new, key=SECOND)).status_code == 201
        assert kept(network) == [3]


async def test_put_manifest__of_a_term_not_seen_yet_is_taken(tmp_path: Path) -> None:
    """Our view may lag. Whoever loads the checkpoint checks the ledger itself."""
    async with running_network(tmp_path, relays=0) as network:
        await add_relay(network, world_of_two(1))
        reply = await put(network, manifest_of_term(tmp_path / "c", step=3, term=2), key=SECOND)
        assert reply.status_code == 201


async def test_run__pulls_no_checkpoint_of_a_fenced_leader(tmp_path: Path) -> None:
    """Another relay, which sees no ledger, has both; only the new leader's is pulled from it."""
    old, new = (manifest_of_term(tmp_path / f"{term}", step=3, term=term) for term in (1, 2))
    rows = Rows(row_of(old, TRAINER, term=1), row_of(new, SECOND, term=2))
    async with running_network(tmp_path, relays=0) as network:
        await network.add_relay(trainers=[TRAINER.node, SECOND.node])
        assert (await put(network, old, key=TRAINER)).status_code == 201
        assert (await put(network, new, key=SECOND)).status_code == 201
        careful = await add_relay(network, world_of_two(2), read=rows)
        async with pulling(network):
            await wait_until(lambda: manifest_digest(new) in careful.shelf.catalogue and rows.reads > 3)
        assert manifest_digest(old) not in careful.shelf.catalogue


def row_of(envelope: Envelope, key: NodeKey, *, term: int) -> Envelope:
    """The checkpoint row of a manifest."""
    message = CheckpointRow(term=term, step=3, manifest=manifest_digest(envelope))
    return seal(
        key,
        run=RUN,
        kind="checkpoint/1",
        record_key=checkpoints_key(RUN),
        subkey=subkey_for(message, run=RUN, signer=key.node, buckets=1),
        sequence=1,
        expiration=2**50,
        payload=encode(message),
    )
