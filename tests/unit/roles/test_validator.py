"""The validator's loop over a directory, a ledger and relays in memory, with real rollouts and real proofs."""

from __future__ import annotations

import asyncio
from pathlib import Path

from ledger.merkle import merkle_root
from ledger.records import Leaf
from ledger.wallet import address_of
from roles.tally import open_tally
from tests.builders import WALLETS, WORKERS
from tests.unit.roles.validator_network import ValidatorNetwork, running


async def test_run__honest_submission_accepted_by_all(tmp_path: Path) -> None:
    async with running(tmp_path) as network:
        made = await network.make()
        await network.hand_in(made)
        await network.until(lambda: all(network.verdict_of(number, made.digest) for number in range(3)))
        verdicts = [network.verdict_of(number, made.digest) for number in range(3)]
        assert {(v.outcome, v.reason, v.audited) for v in verdicts if v} == {("accept", 0, True)}
        assert [item.digest for item in network.accepted()] == [made.digest]


async def test_run__epochs_are_tallied_to_the_end_and_validators_leave(tmp_path: Path) -> None:
    """Two epochs: one closed by its checkpoints, one by the end of the run. Every accepted unit is in a final root."""
    async with running(tmp_path) as network:
        first, second = await network.make(), await network.make(WORKERS[1])
        await network.hand_in(first)
        await network.hand_in(second, WORKERS[1])
        await network.until(lambda: len(network.accepted()) == 2)
        await network.commit()
        await network.collect(2)
        third = await network.make(step=2)
        await network.hand_in(third)
        await network.until(lambda: len(network.accepted()) == 3)
        await network.commit()  # the third checkpoint closes the first epoch
        await _until_epochs(network, 1)
        await network.collect(3)
        fourth = await network.make(step=3)
        await network.hand_in(fourth)
        await network.until(lambda: len(network.accepted()) == 4)
        await network.commit(final=True)
        await _until_epochs(network, 2)
        roots = await network.ledger.final_roots()
        leaves = (
            Leaf(
                WORKERS[0].node,
                address_of(WALLETS[0]),
                first.submission.tokens + third.submission.tokens + fourth.submission.tokens,
            ),
            Leaf(WORKERS[1].node, address_of(WALLETS[1]), second.submission.tokens),
        )
        assert roots[-1].root == merkle_root(leaves)
        assert roots[-1].total == sum(leaf.units for leaf in leaves)
        assert len(open_tally(network.relays.blobs[roots[-1].blob]).items) == 1


async def _until_epochs(network: ValidatorNetwork, count: int) -> None:
    async with asyncio.timeout(20):
        while len(await network.ledger.final_roots()) < count:
            await asyncio.sleep(0.05)
