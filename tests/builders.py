"""Builders shared by all tests: keys, spec, ledger, rows, rollouts made by the shipped policy.

Everything is valid by default, i.e. the network would accept it; a test spoils the one thing it is about.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from dht.encoding import ZERO_DIGEST, Message, digest, encode, sha256
from dht.envelope import Envelope, seal
from dht.errors import TransportError
from dht.identity import NodeKey
from ledger.memory import MemoryChain, MemoryLedger
from ledger.records import (
    Block,
    Commit,
    Operator,
    Registration,
    RegistrationRequest,
    RotationRequest,
    RunTerms,
    ValidatorSet,
)
from ledger.wallet import address_of, sign_registration
from roles.inference.sampling import SamplingSettings
from roles.inference.transformers_engine import TransformersEngine
from roles.messages import ROW_RULES, SHARE_ALL, Head, OpenStep, Submission, Verdict, place_of, subkey_for
from roles.observer import BURIED_BLOCKS
from roles.ports import Offer
from roles.rollouts.schema import RolloutFile, RolloutLimits, RolloutRow, read_rollouts, write_rollouts
from roles.rules import Reason
from roles.spec import (
    CheckSpec,
    EpochSpec,
    LedgerSpec,
    ModelSpec,
    OperatorSpec,
    PinnedFile,
    RunSpec,
    SamplingSpec,
    TaskSpec,
    TrainingSpec,
)
from roles.tasks import Task, load_task
from roles.trusted import LedgerView, TrustedState
from roles.worker.generation import Generator, HeldPolicy, Made, Ticket, submission_digest

POLICY = Path(__file__).parents[1] / "roles" / "rl" / "default_policy"
NOW = 1_700_000_000_000
"""Unix milliseconds at which everything happens unless stated otherwise."""


def node_key(number: int) -> NodeKey:
    """A node key that is the same in every run of the tests."""
    return NodeKey(bytes([number]) * 32)


def operator_key(number: int) -> bytes:
    """A secp256k1 key that is the same in every run of the tests."""
    return bytes([number]) * 32


TRAINER = node_key(1)
VALIDATORS = (node_key(11), node_key(12), node_key(13))
WORKERS = (node_key(21), node_key(22), node_key(23))
STRANGER = node_key(99)
TRAINER_OPERATOR = operator_key(101)
VALIDATOR_OPERATORS = (operator_key(111), operator_key(112), operator_key(113))
WALLETS = (operator_key(121), operator_key(122), operator_key(123))


@functools.cache
def shared_task() -> Task:
    """The default task."""
    return load_task("arithmetic", {})


@functools.cache
def shared_engine() -> TransformersEngine:
    """An engine with the shipped policy loaded; one for all tests, since none of them changes it."""
    torch.set_num_threads(1)
    engine = TransformersEngine()
    engine.load(POLICY)
    return engine


def operator_spec(key: NodeKey, operator: bytes) -> OperatorSpec:
    """A trainer or validator of the spec, paid at its own operator address."""
    return OperatorSpec(node=key.node, operator=address_of(operator), payout=address_of(operator))


@functools.cache
def _pinned_files() -> tuple[PinnedFile, ...]:
    files = sorted(path for path in POLICY.iterdir() if path.is_file())
    return tuple(
        PinnedFile(name=f.name, size=f.stat().st_size, sha256=sha256(f.read_bytes())) for f in files if f.name[0] != "."
    )


def make_spec(**changes: Any) -> RunSpec:
    """Three validators, quorum two, two groups of four completions per submission."""
    task = shared_task()
    fields: dict[str, Any] = {
        "name": "test run",
        "model": ModelSpec(name="tiny", files=_pinned_files()),
        "tasks": (TaskSpec(name="arithmetic", size=task.size, digest=task.digest),),
        "sampling": SamplingSpec(group_size=4, groups_per_submission=2),
        "training": TrainingSpec(),
        "checks": CheckSpec(),
        "epoch": EpochSpec(checkpoints=2),
        "quorum": 2,
        "validators": tuple(map(operator_spec, VALIDATORS, VALIDATOR_OPERATORS)),
        "trainers": (operator_spec(TRAINER, TRAINER_OPERATOR),),
        "ledger": LedgerSpec(
            chain_id=31337,
            contract="0x5FbDB2315678afecb367f032d93F642f64180aa3",
            code_hash="c0" * 32,
            deployment_block_hash="d0" * 32,
        ),
    }
    return RunSpec(**{**fields, **changes})


def make_terms(spec: RunSpec) -> RunTerms:
    """A spec's terms in the contract."""

    def operators(items: Sequence[OperatorSpec]) -> tuple[Operator, ...]:
        return tuple(Operator(item.node, item.operator, item.payout) for item in items)

    return RunTerms(
        run=spec.run_id,
        owner=address_of(TRAINER_OPERATOR),
        validators=operators(spec.validators),
        trainers=operators(spec.trainers),
        quorum=spec.quorum,
        epoch_checkpoints=spec.epoch.checkpoints,
        epoch_max_seconds=spec.epoch.max_seconds,
        round_seconds=spec.epoch.round_seconds,
        created_block=1,
        epoch_budget=int(spec.rewards.budget),
        min_stake=int(spec.rewards.min_stake),
        token=spec.rewards.token,
    )


def manifest_of(step: int) -> str:
    """A made-up manifest digest for a checkpoint."""
    return digest("test-manifest", step)


def make_view(spec: RunSpec, *, commits: int = 3, head_block: int = 100) -> LedgerView:
    """A ledger with all workers registered and checkpoints 0 .. commits-1 committed, one every ten blocks."""
    committed = {
        step: Commit(
            term=1,
            step=step,
            manifest=manifest_of(step),
            parent=manifest_of(step - 1) if step else ZERO_DIGEST,
            final=False,
            block=10 + 10 * step,
            timestamp=1000 + 10 * step,
        )
        for step in range(commits)
    }
    registrations = {
        key.node: Registration(key.node, address_of(wallet), None, 1, 2, 2)
        for key, wallet in zip(WORKERS, WALLETS, strict=True)
    }
    beacons = {key.node: digest("test-block", key.node) for key in WORKERS}
    head = Block(head_block, digest("test-block", head_block), 1000 + head_block)
    return LedgerView(make_terms(spec), head, committed, registrations, beacons)


def make_judges(spec: RunSpec) -> ValidatorSet:
    """The validators from the creation of the run."""
    return ValidatorSet(0, make_terms(spec).validators, spec.quorum, 0)


def make_row(message: Message, key: NodeKey, *, spec: RunSpec, now: int = NOW, **changes: Any) -> Envelope:
    """A message as its signer would publish it. `changes` override the signed fields."""
    kind = str(getattr(message, "kind"))  # noqa: B009 - every message has one
    record_key, _ = place_of(message, run=spec.run_id, buckets=spec.buckets)
    fields: dict[str, Any] = {
        "run": spec.run_id,
        "kind": kind,
        "record_key": record_key,
        "subkey": subkey_for(message, run=spec.run_id, signer=key.node, buckets=spec.buckets),
        "sequence": now,
        "expiration": now + ROW_RULES[kind].lifetime * 1000,
        "payload": encode(message),
    }
    return seal(key, **{**fields, **changes})


def make_head(step: int = 1, **changes: Any) -> Head:
    """The leader collects `step`; the three newest steps are open with four indices each."""
    fields: dict[str, Any] = {
        "term": 1,
        "step": step,
        "policy_step": max(0, step - 1),
        "manifest": manifest_of(max(0, step - 1)),
        "groups_wanted": 16,
        "state": "collecting",
        "open_steps": tuple(
            OpenStep(step=number, limit=4, share=SHARE_ALL) for number in range(max(1, step - 2), step + 1)
        ),
    }
    return Head(**{**fields, **changes})


@dataclass
class World:
    """A run as one node sees it: the spec, the trusted state with the ledger and a head admitted, engine and task."""

    spec: RunSpec
    trusted: TrustedState
    engine: TransformersEngine = field(default_factory=shared_engine)
    task: Task = field(default_factory=shared_task)

    @property
    def run(self) -> str:
        """The run's id."""
        return self.spec.run_id

    def row(self, message: Message, key: NodeKey, **changes: Any) -> Envelope:
        """A signed row in this run."""
        return make_row(message, key, spec=self.spec, **changes)

    def seed(self, key: NodeKey, step: int = 1, index: int = 0) -> str:
        """A worker's assignment seed."""
        seed = self.trusted.seed_of(key.node, step, index)
        assert seed is not None
        return seed

    def state(self) -> object:
        """The trusted state's content, for comparing before and after."""
        trusted = self.trusted
        return (
            tuple(trusted.submissions),
            tuple((name, tuple(item.verdicts.items())) for name, item in trusted.standings.items() if item.verdicts),
            tuple(item.digest for item in trusted.accepted()),
            trusted.head,
            dict(trusted.opened),
        )


def make_world(spec: RunSpec | None = None, *, commits: int = 3, head: Head | None = None) -> World:
    """A world in which step 1 is being collected."""
    spec = spec or make_spec()
    trusted = TrustedState(spec)
    trusted.admit_view(make_view(spec, commits=commits))
    world = World(spec, trusted)
    trusted.admit_head(world.row(head or make_head(), TRAINER))
    return world


def make_submission(world: World, key: NodeKey = WORKERS[0], **changes: Any) -> Submission:
    """A submission whose blob nobody reads."""
    sampling = world.spec.sampling
    fields: dict[str, Any] = {
        "run": world.run,
        "node": key.node,
        "step": 1,
        "index": 0,
        "policy_step": 0,
        "policy": manifest_of(0),
        "predecessor": ZERO_DIGEST,
        "blob": "ab" * 32,
        "size": 1000,
        "groups": sampling.groups_per_submission,
        "completions": sampling.groups_per_submission * sampling.group_size,
        "tokens": 100,
    }
    return Submission(**{**fields, **changes})


def make_verdict(submission: Submission, **changes: Any) -> Verdict:
    """An audited acceptance."""
    fields: dict[str, Any] = {
        "run": submission.run,
        "submission": submission_digest(submission),
        "node": submission.node,
        "step": submission.step,
        "index": submission.index,
        "outcome": "accept",
        "reason": int(Reason.ACCEPTED),
        "audited": True,
        "tokens": submission.tokens,
    }
    return Verdict(**{**fields, **changes})


# -- rollouts made by the shipped policy ------------------------------------------------------------------------------


def make_rollouts(
    world: World,
    key: NodeKey = WORKERS[0],
    *,
    step: int = 1,
    index: int = 0,
    predecessor: str = ZERO_DIGEST,
    policy: HeldPolicy | None = None,
    seed: str | None = None,
) -> Made:
    """What an honest worker submits for an index: real completions, rewards and proofs."""
    generator = Generator(world.spec, node=key.node, engine=world.engine, task=world.task)
    generator.loaded = policy or HeldPolicy(0, manifest_of(0), POLICY)  # the shared engine has it loaded already
    seed = seed or world.seed(key, step, index)
    return generator.make(Ticket(step=step, index=index, seed=seed, predecessor=predecessor))


def wide_limits(world: World) -> RolloutLimits:
    """Limits under which every file of the tests can be read."""
    calls = world.spec.tool.max_calls if world.spec.tool else 0
    return RolloutLimits(2**24, 4096, 4096, 4096, world.engine.vocabulary, 2**20, calls)


def open_rollouts(world: World, made: Made) -> RolloutFile:
    """The rows, for a test to spoil."""
    return read_rollouts(made.blob, wide_limits(world))


def repack(made: Made, blob: bytes, **changes: Any) -> Made:
    """The same submission with another blob. Signed counts match it unless `changes` overrides them."""
    submission = made.submission.model_copy(update={"blob": sha256(blob), "size": len(blob), **changes})
    return Made(submission, submission_digest(submission), blob, made.reward)


def spoil(
    world: World, made: Made, change: Callable[[RolloutRow], RolloutRow], *, rows: slice | None = None, **file: Any
) -> Made:
    """Change some rows (default: the first), or fields of the file, and sign the result."""
    before = open_rollouts(world, made)
    chosen = range(len(before.rows))[rows or slice(0, 1)]
    changed = tuple(change(row) if number in chosen else row for number, row in enumerate(before.rows))
    after = replace(before, rows=changed, **file)
    return repack(made, write_rollouts(after), tokens=sum(len(row.output) for row in changed))


def sampling_of(spec: RunSpec) -> SamplingSettings:
    """The spec's sampling settings in the form the engine takes."""
    sampling = spec.sampling
    return SamplingSettings(float(sampling.temperature), float(sampling.top_p), sampling.top_k, sampling.max_tokens)


# -- a ledger and relays in memory ------------------------------------------------------------------------------------


def make_chain(spec: RunSpec) -> MemoryChain:
    """A chain on which the run has been created."""
    chain = MemoryChain()
    chain.mine()
    chain.create_run(make_terms(spec))
    return chain


async def register_workers(chain: MemoryChain, spec: RunSpec, keys: Mapping[NodeKey, bytes] | None = None) -> None:
    """Register nodes with their wallets (default: every worker), and mine the block of their beacons."""
    ledger = MemoryLedger(chain, run=spec.run_id, operator_key=TRAINER_OPERATOR)
    for key, wallet in (keys or dict(zip(WORKERS, WALLETS, strict=True))).items():
        await ledger.register(make_registration(ledger, spec, key, wallet))
    chain.mine(spec.epoch.beacon_blocks + BURIED_BLOCKS)


def make_registration(
    ledger: MemoryLedger, spec: RunSpec, key: NodeKey, wallet: bytes, *, nonce: int = 1
) -> RegistrationRequest:
    """A registration signed by node and wallet."""
    return sign_registration(
        ledger.domain, run=spec.run_id, node=key.node, nonce=nonce, sign_node=key.sign, wallet_key=wallet
    )


async def replace_key(ledger: MemoryLedger, run: str, old: NodeKey, new: NodeKey) -> None:
    """Replace a node's key, with the old key's signature; the ledger's account pays."""
    messages = ledger.rotation_messages(old.node, new.node, nonce=2)
    by_old, by_new = (key.sign(messages.node).hex() for key in (old, new))
    await ledger.rotate(RotationRequest(run, old.node, new.node, None, 2, "", by_old, by_new))


@dataclass(frozen=True)
class MemoryOffer:
    """What a relay announces that it has."""

    manifest: str
    step: int


class MemoryRelays:
    """In-memory relays that implement `roles.ports.Relays`. Set `is_down` to make every access fail."""

    def __init__(self) -> None:
        self.blobs: dict[str, bytes] = {}
        self.checkpoints: dict[str, Path] = {}
        self.whole: list[bool] = []  # for each checkpoint put here, whether every shard is to be sent
        self.manifests: dict[str, Envelope] = {}
        self.served: dict[str, dict[str, int]] = {}  # by manifest: bytes per relay, as the next fetch will report them
        self.offers: asyncio.Queue[MemoryOffer] = asyncio.Queue()  # received by the watcher
        self.is_down = False

    async def put(self, data: bytes, *, last: Collection[str] = ()) -> tuple[str, ...]:
        self._reach()
        self.blobs[sha256(data)] = data
        return (node_key(31).node,)

    async def get(self, digest: str, *, limit: int, relays: Sequence[str] = ()) -> bytes:
        self._reach()
        data = self.blobs.get(digest)
        if data is None or len(data) > limit:
            raise TransportError("no relay has the blob")
        return data

    async def fetch_manifest(self, digest: str) -> Envelope:
        self._reach()
        if digest not in self.manifests:
            raise TransportError("no relay has the manifest")
        return self.manifests[digest]

    async def watch(self, told: Callable[[Offer], None], *, held: Callable[[], str]) -> None:
        while True:
            told(await self.offers.get())

    def received(self, manifest: str) -> Mapping[str, int]:
        return self.served.pop(manifest, {})

    async def fetch_checkpoint(self, digest: str, into: Path) -> Path:
        self._reach()
        if digest not in self.checkpoints:
            raise TransportError("no relay has the checkpoint")
        folder = into / digest
        folder.mkdir(parents=True, exist_ok=True)
        for file in self.checkpoints[digest].iterdir():
            if file.is_file():
                (folder / file.name).write_bytes(file.read_bytes())
        return folder

    async def put_checkpoint(
        self, manifest: Envelope, directory: Path, *, delta: tuple[Envelope, Path] | None = None, whole: bool = True
    ) -> tuple[str, ...]:
        self._reach()
        self.checkpoints[manifest.digest] = directory
        self.whole.append(whole)
        return (node_key(31).node,)

    def _reach(self) -> None:
        if self.is_down:
            raise TransportError("no relay answers")
