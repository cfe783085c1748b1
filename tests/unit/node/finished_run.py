"""A finished run on an in-memory ledger with real signatures throughout, for an audit to
check and a test to tamper with."""

from __future__ import annotations

import zlib
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from dht.encoding import ZERO_DIGEST, encode, sha256
from dht.envelope import Envelope
from dht.identity import NodeKey
from ledger.memory import MemoryChain, MemoryLedger
from ledger.records import FinalRoot, Operator, Proposal, Strike
from ledger.rules import find_closing_block
from ledger.wallet import address_of
from roles.assignment import beacon_step, compute_beacon, compute_seed
from roles.evidence import pack_evidence
from roles.messages import CheckpointManifest, FileEntry, Receipt, ReceivedShare, Submission
from roles.rules import Reason
from roles.shardcast.manifest import compute_weights_digest
from roles.spec import CheckSpec, EpochSpec, RewardSpec, RunSpec
from roles.tally import Contribution, TallyBody, build_tally, open_tally, pack_item, proposal_of, read_context
from roles.worker.generation import HeldPolicy, Made
from tests.builders import (
    POLICY,
    TRAINER,
    TRAINER_OPERATOR,
    VALIDATOR_OPERATORS,
    VALIDATORS,
    WORKERS,
    MemoryRelays,
    World,
    make_chain,
    make_rollouts,
    make_row,
    make_spec,
    make_verdict,
    make_world,
    node_key,
    register_workers,
    replace_key,
)

SPEC = make_spec(
    rewards=RewardSpec(budget="1000"),
    checks=CheckSpec(strikes_to_eject=2),
    epoch=EpochSpec(checkpoints=2, max_seconds=10_000),
)
RELAY = node_key(31)
Lie = Callable[[TallyBody], dict[str, Any]]
"""Fields of a tally, as falsified by liars."""


@dataclass
class FinishedRun:
    """Checkpoints, tallies and strikes, made step by step. `relays` and `chain` may be tampered with."""

    spec: RunSpec
    chain: MemoryChain
    relays: MemoryRelays
    manifests: list[str]
    judges: Sequence[tuple[NodeKey, bytes]] = tuple(zip(VALIDATORS, VALIDATOR_OPERATORS, strict=True))

    def ledger(self, key: bytes | None = TRAINER_OPERATOR) -> MemoryLedger:
        """The ledger as the holder of a key sees it."""
        return MemoryLedger(self.chain, run=self.spec.run_id, operator_key=key)

    def row(self, message: Any, key: NodeKey) -> Envelope:
        """A signed row in this run."""
        return make_row(message, key, spec=self.spec)

    async def replace_key(self, old: NodeKey, new: NodeKey) -> None:
        """Replace a worker's key by another."""
        await replace_key(self.ledger(), self.spec.run_id, old, new)

    async def commit(self, *, signer: NodeKey = TRAINER, final: bool = False, **changes: Any) -> None:
        """Commit the next checkpoint: its manifest goes to the relays, its digest to the ledger."""
        shards = ("ab" * 32,)
        files = tuple(FileEntry(name=file.name, size=file.size) for file in self.spec.model.files)
        fields: dict[str, Any] = {
            "run": self.spec.run_id,
            "term": 1,
            "step": len(self.manifests),
            "parent": self.manifests[-1] if self.manifests else ZERO_DIGEST,
            "weights": compute_weights_digest(shards),
            "files": files,
            "shard_size": 2**30,
            "shards": shards,
        }
        row = self.row(CheckpointManifest(**{**fields, **changes}), signer)
        await self.ledger().commit_checkpoint(
            term=1,
            step=len(self.manifests),
            manifest=row.digest,
            parent=self.manifests[-1] if self.manifests else ZERO_DIGEST,
            final=final,
        )
        self.relays.manifests[row.digest] = row
        self.relays.checkpoints[row.digest] = POLICY
        self.manifests.append(row.digest)

    async def seed(self, key: NodeKey, step: int, index: int) -> str:
        """Assignment seed of a worker."""
        held = await self.ledger().registration(key.node)
        assert held is not None
        block = await self.ledger().block(held.first_block + self.spec.epoch.beacon_blocks)
        assert block is not None
        beacon = compute_beacon(self.manifests[beacon_step(step, self.spec.training.async_level)], block.hash)
        return compute_seed(run=self.spec.run_id, node=held.root, step=step, index=index, beacon=beacon)

    async def rollouts(self, key: NodeKey = WORKERS[0], *, step: int = 1, index: int = 0) -> Made:
        """Real rollouts for an index, uploaded."""
        world = World(self.spec, make_world(self.spec).trusted)
        policy = HeldPolicy(step - 1, self.manifests[step - 1], POLICY)
        seed = await self.seed(key, step, index)
        made = make_rollouts(world, key, step=step, index=index, policy=policy, seed=seed)
        await self.relays.put(made.blob)
        return made

    def submission(self, key: NodeKey = WORKERS[0], *, step: int = 1, index: int = 0, **changes: Any) -> Submission:
        """A submission whose rollouts are nowhere."""
        groups = self.spec.sampling.groups_per_submission
        fields: dict[str, Any] = {
            "run": self.spec.run_id,
            "node": key.node,
            "step": step,
            "index": index,
            "policy_step": step - 1,
            "policy": self.manifests[step - 1],
            "predecessor": ZERO_DIGEST,
            "blob": "cd" * 32,
            "size": 1000,
            "groups": groups,
            "completions": groups * self.spec.sampling.group_size,
            "tokens": 100,
        }
        return Submission(**{**fields, **changes})

    def judged(self, submission: Submission, key: NodeKey, **verdict: Any) -> Contribution:
        """A submission with every validator's verdict."""
        rows = tuple(self.row(make_verdict(submission, **verdict), validator) for validator, _ in self.judges)
        return Contribution(self.row(submission, key), rows)

    async def tally(
        self,
        contributions: Sequence[Contribution],
        *,
        lie: Lie | None = None,
        sent_after: Callable[[], Awaitable[None]] | None = None,
    ) -> FinalRoot:
        """Close an epoch. With `lie`, a quorum of liars attests a falsified version of the honest body. `sent_after`
        runs between the attestations and the call."""
        ledger = self.ledger()
        roots, closing = await ledger.final_roots(), await find_closing_block(ledger)
        assert closing is not None
        parent = open_tally(self.relays.blobs[roots[-1].blob]) if roots else None
        sizes = dict.fromkeys(range(len(self.manifests)), sum(file.size for file in self.spec.model.files))
        context = await read_context(
            ledger, spec=self.spec, roots=roots, parent=parent, closing_block=closing.number, published=sizes
        )
        receipt = Receipt(
            run=self.spec.run_id,
            client=WORKERS[0].node,
            step=len(self.manifests) - 1,
            shares=(ReceivedShare(relay=RELAY.node, size=sizes[0]),),
        )
        rows = [self.row(receipt, WORKERS[0])]
        blob, proposal = build_tally(context, contributions, round_number=0, receipts=rows)
        if lie is not None:
            blob, proposal = _lied(blob, lie)
        await self.relays.put(blob)
        attestations = [await self.ledger(key).attest(proposal) for _, key in self.judges[:2]]
        if sent_after is not None:
            await sent_after()
            attestations = attestations[: len(self.judges)]
        await ledger.finalise(proposal, attestations)
        return (await ledger.final_roots())[-1]

    async def replace_validators(self, *judges: tuple[NodeKey, bytes]) -> None:
        """The owner appoints other validators, who come into force; the quorum is all of them."""
        operators = [Operator(key.node, address_of(operator), address_of(operator)) for key, operator in judges]
        await self.ledger().propose_validators(operators, len(judges))
        self.chain.mine(1, seconds=(await self.ledger().terms()).change_seconds)
        await self.ledger().apply_validators()
        self.judges = judges

    async def strike(self, faults: Sequence[Contribution], node: str = WORKERS[1].node) -> None:
        """A quorum strikes a node on this evidence."""
        number = await self.ledger().strike_number(node)
        blob = pack_evidence(run=self.spec.run_id, node=node, number=number, faults=map(pack_item, faults))
        await self.relays.put(blob)
        made = Strike(self.spec.run_id, node, None, number, Reason.WRONG_REWARD, sha256(blob))
        ledgers = [self.ledger(key) for key in VALIDATOR_OPERATORS]
        await ledgers[0].strike(made, [await ledger.attest_strike(made) for ledger in ledgers])


def _lied(blob: bytes, lie: Lie) -> tuple[bytes, Proposal]:
    body = open_tally(blob)
    body = body.model_copy(update=lie(body))
    blob = zlib.compress(encode(body))
    return blob, proposal_of(body, blob)


async def start_run(spec: RunSpec = SPEC) -> FinishedRun:
    """A funded run with workers and the base model committed."""
    run = FinishedRun(spec, make_chain(spec), MemoryRelays(), [])
    await register_workers(run.chain, spec)
    await run.ledger().fund(5000)
    await run.commit()
    return run
