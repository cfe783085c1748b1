"""A worker that replaces its key to draw other prompts or to retry its places, and an
honest one that does so midway."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from dht.encoding import ZERO_DIGEST
from dht.identity import NodeKey
from ledger.wallet import address_of
from node.audit.rollouts import seed_from_ledger
from roles.assignment import assigned_groups, beacon_step, compute_beacon, compute_seed
from roles.rules import Reason
from roles.spec import EpochSpec
from roles.tally import open_tally
from tests.builders import (
    WALLETS,
    WORKERS,
    World,
    make_spec,
    make_submission,
    manifest_of,
    node_key,
    shared_engine,
    shared_task,
    spoil,
)
from tests.unit.roles.validator_network import ValidatorNetwork, running

WORKER, NEW = WORKERS[0], node_key(24)


def problems(network: ValidatorNetwork, seed: str | None) -> list[int]:
    """The problems that a seed draws."""
    assert seed is not None
    sampling = network.spec.sampling
    groups = assigned_groups(
        seed,
        problems=shared_task().size,
        groups=sampling.groups_per_submission,
        group_size=sampling.group_size,
    )
    return [group.problem for group in groups]


async def ground_key(network: ValidatorNetwork) -> tuple[NodeKey, list[int]]:
    """Of 200 keys, the one that would draw the easiest problems by the block known now, and these problems."""
    held = await network.ledger.registration(WORKER.node)
    assert held is not None
    block = await network.ledger.block(held.first_block + network.spec.epoch.beacon_blocks)
    assert block is not None
    manifest = manifest_of(beacon_step(1, network.spec.training.async_level))
    beacon = compute_beacon(manifest, block.hash)

    def drawn(key: NodeKey) -> list[int]:
        return problems(network, compute_seed(run=network.spec.run_id, node=key.node, step=1, index=0, beacon=beacon))

    best = min((NodeKey(number.to_bytes(32, "big")) for number in range(1, 201)), key=lambda key: max(drawn(key)))
    return best, drawn(best)


async def test_key_made_for_its_prompts__draws_those_of_the_first(tmp_path: Path) -> None:
    async with running(tmp_path, validators=()) as network:
        drawn = problems(network, network.trusted.seed_of(WORKER.node, 1, 0))
        key, wanted = await ground_key(network)
        await network.replace_key(WORKER, key)
        assert problems(network, network.trusted.seed_of(key.node, 1, 0)) == drawn != wanted


async def test_replaced_key__all_derive_its_seed_from_the_ledger_alone(tmp_path: Path) -> None:
    """A validator that was present before, one that joins later, and an auditor."""
    async with running(tmp_path, validators=(0,)) as network:
        (early,) = network.validators.values()
        await network.until(lambda: early.trusted.view is not None)
        await network.replace_key(WORKER, NEW)
        late, observer = network.build(1)
        await observer.look()
        await network.until(lambda: early.trusted.root_of(NEW.node) == WORKER.node)
        submission = make_submission(World(network.spec, network.trusted), NEW)
        audited = await seed_from_ledger(network.spec, network.ledger, submission)
        assert early.trusted.seed_of(NEW.node, 1, 0) == late.trusted.seed_of(NEW.node, 1, 0) == audited is not None


async def test_new_key_hands_in_its_places_again__accepted_once(tmp_path: Path) -> None:
    async with running(tmp_path) as network:
        made = await network.make(WORKER)
        await network.hand_in(made, WORKER)
        await network.until(lambda: len(network.accepted()) == 1)
        await network.replace_key(WORKER, NEW)
        again = await network.make(NEW)
        await network.hand_in(again, NEW)

        def refusals() -> list[int]:
            verdicts = [network.verdict_of(number, again.digest) for number in range(3)]
            return [verdict.reason for verdict in verdicts if verdict is not None]

        await network.until(lambda: len(refusals()) == 3)
        assert set(refusals()) == {Reason.EQUIVOCATION}
        assert [item.digest for item in network.accepted()] == [made.digest]


async def test_old_key_is_its_thief_s__nothing_it_signs_is_looked_at(tmp_path: Path) -> None:
    async with running(tmp_path) as network:
        await network.replace_key(WORKER, NEW)
        world = World(network.spec, network.trusted, shared_engine(), shared_task())
        before = world.state()
        forged = spoil(world, await network.make(WORKER), lambda row: replace(row, reward=0.5))
        await network.hand_in(forged, WORKER)
        await network.until(lambda: network.eye.ignored.get(Reason.UNREGISTERED, 0) > 0)
        assert world.state() == before
        honest = await network.make(NEW)
        await network.hand_in(honest, NEW)
        await network.until(lambda: [item.digest for item in network.accepted()] == [honest.digest])
        assert all(network.verdict_of(number, forged.digest) is None for number in range(3))


async def test_honest_key_replaced_midway__all_it_handed_in_is_credited_to_its_wallet(tmp_path: Path) -> None:
    spec = make_spec(epoch=EpochSpec(checkpoints=2, round_seconds=30))
    async with running(tmp_path, spec=spec) as network:
        first = await network.make(WORKER)
        await network.hand_in(first, WORKER)
        await network.until(lambda: first.digest in network.trusted.submissions)
        validators = list(network.validators.values())
        await network.until(lambda: all(first.digest in each.trusted.submissions for each in validators))
        await network.replace_key(WORKER, NEW)
        second = await network.make(NEW, index=1, predecessor=first.digest)
        await network.hand_in(second, NEW)
        await network.until(lambda: len(network.accepted()) == 2)
        await network.commit()
        await network.until_epochs(1)
        (root,) = await network.ledger.final_roots()
        leaves = [leaf for leaf in open_tally(network.relays.blobs[root.blob]).leaves if leaf.role == "worker"]
        assert sum(leaf.units for leaf in leaves) == first.submission.tokens + second.submission.tokens
        assert {leaf.wallet for leaf in leaves} == {address_of(WALLETS[0])}
        assert second.submission.predecessor == first.digest != ZERO_DIGEST
