"""A whole swarm in one process: real roles over in-memory parts, with faults for each source of truth.

DHT: `MemoryDirectory` (drop, delay, reorder, down). Ledger: `MemoryChain` (down, slow blocks). Relays: the real
application through an in-process transport (down, wrong bytes). Disk: every node has a folder; a node can be killed at
any moment and restarted on it, or on an empty one.
"""

from __future__ import annotations

import asyncio
import copy
import shutil
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Protocol

import httpx
import structlog
import torch

from dht.encoding import sha256
from dht.envelope import Envelope
from dht.errors import NodeError
from dht.identity import NodeKey
from dht.memory import Faults, MemoryDirectory, MemoryNetwork
from dht.records import Publisher
from dht.rows import Outcome
from ledger.errors import LedgerUnavailable
from ledger.memory import MemoryChain, MemoryLedger
from ledger.model import RegistryModel
from ledger.records import Block, Commit, Operator, RunTerms
from ledger.wallet import address_of, new_key, sign_registration
from roles.announce import Voice
from roles.boards import UnionDirectory
from roles.compute import ComputeThread
from roles.context import RunContext
from roles.inference.engine import Engine
from roles.inference.transformers_engine import TransformersEngine
from roles.messages import ROW_RULES
from roles.observer import Observer
from roles.relay.actor import Relay
from roles.relay.boards import Board
from roles.rl.learner import Learner
from roles.rl.settings import GrpoSettings
from roles.run_terms import terms_of
from roles.shardcast.client import RelayClient
from roles.shardcast.replies import RelayInfo
from roles.spec import (
    BroadcastSpec,
    CheckSpec,
    LedgerSpec,
    ModelSpec,
    OperatorSpec,
    PinnedFile,
    RunSpec,
    SamplingSpec,
    TaskSpec,
    TermsSpec,
    TrainingSpec,
)
from roles.trainer import Trainer
from roles.trainer.closing import ClosedBatch
from roles.trainer.journal import Journal
from roles.trainer.stepping import STATE_EVERY
from roles.trusted import TrustedState
from roles.validator import Validator
from roles.verification import CHECKS, Check
from roles.worker import Worker
from tests.swarm.auto_validator import AutoValidator
from tests.swarm.even_task import EvenTask
from tests.swarm.events import EventLog
from tests.unit.roles.inference.tiny_policy import write_tiny_policy

log = structlog.get_logger()

LOOK_SECONDS = 0.03
BLOCK_SECONDS = 0.1
FAST_TRAINING = TrainingSpec(
    steps=4, batch_groups=4, min_batch=2, max_groups=24, initial_limit=3, learning_rate="0.003", optimizer_steps=2
)
FAST_SAMPLING = SamplingSpec(max_tokens=8, max_prompt_tokens=16, group_size=6, groups_per_submission=2)
FAST_CHECKS = CheckSpec(topk=16, chunk=8)


Moment = tuple[list[Block], RegistryModel]
"""Blocks of the chain, and the registry state they lead to."""


class Actor(Protocol):
    """A node's role."""

    async def run(self) -> None: ...


class SharedProcessEngine(TransformersEngine):
    """The real engine. Loads take turns, because the library's loader is not thread-safe."""

    loading: ClassVar[threading.Lock] = threading.Lock()

    def load(self, checkpoint: Path) -> None:
        with self.loading:
            super().load(checkpoint)


@dataclass(slots=True)
class RelayFaults:
    """Faults of one relay's HTTP interface."""

    is_down: bool = False
    serves_wrong_bytes: bool = False
    withholds_weights: bool = False
    takes_no_weights: bool = False
    serves_uploaders_only: bool = False  # accepts rollouts, but serves them only to workers


class _OneBlock(httpx.AsyncByteStream):
    """An unread body."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    async def __aiter__(self) -> AsyncIterator[bytes]:
        yield self._data


class FaultyTransport(httpx.AsyncBaseTransport):
    """One relay's application in this process, behind its faults. A client that
    disconnects does not stop the server."""

    def __init__(self, relay: Relay, faults: RelayFaults) -> None:
        self._inner = httpx.ASGITransport(app=relay.app)
        self._relay, self._faults = relay, faults
        self._serving: set[asyncio.Task[httpx.Response]] = set()

    async def aclose(self) -> None:
        for task in self._serving:
            task.cancel()  # long polls
        if self._serving:
            await asyncio.wait(self._serving)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        if self._faults.is_down:
            raise httpx.ConnectError("connection refused", request=request)
        if self._faults.withholds_weights and self._is_for_weights(request):
            raise httpx.ReadTimeout("no bytes", request=request)
        if self._faults.takes_no_weights and request.method == "PUT" and request.url.path.startswith("/manifests/"):
            raise httpx.ConnectError("connection refused", request=request)
        if self._faults.serves_uploaders_only and self._is_for_rollouts(request):
            return httpx.Response(404, stream=_OneBlock(b"{}"))
        task = asyncio.create_task(self._inner.handle_async_request(request))
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)
        reply = await asyncio.shield(task)
        if self._faults.serves_wrong_bytes and request.method == "GET" and request.url.path.startswith("/blobs/"):
            data = bytearray(await reply.aread())
            data[len(data) // 2] ^= 1
            return httpx.Response(reply.status_code, headers=reply.headers, stream=_OneBlock(bytes(data)))
        return reply

    def _is_for_rollouts(self, request: httpx.Request) -> bool:
        """Whether a node other than a worker requests a blob that is not part of a checkpoint."""
        who = structlog.contextvars.get_contextvars().get("role")
        is_blob = request.url.path.startswith("/blobs/") and not self._relay.shelf.catalogue.lists(request.url.path[7:])
        return who != "worker" and request.method == "GET" and is_blob

    def _is_for_weights(self, request: httpx.Request) -> bool:
        return request.method == "GET" and self._relay.shelf.catalogue.lists(request.url.path.rpartition("/")[2])


class RecordingNetwork(MemoryNetwork):
    """Remembers every row ever published."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.said: list[Envelope] = []

    def take(self, data: bytes) -> Outcome:
        self.said.append(self.gate.open(data))
        return super().take(data)


@dataclass(slots=True)
class SimNode:
    """One node: what survives a kill (key, folder, faults), and its running task."""

    name: str
    role: str
    key: NodeKey
    folder: Path
    operator_key: bytes | None = None
    lag: int = 0  # blocks by which its view of the ledger trails
    has_no_ledger: bool = False  # only its own end-points are down
    faults: Faults = field(default_factory=Faults)
    engine: Callable[[Engine], Engine] = lambda engine: engine
    worker: Callable[..., Worker] = Worker
    checks: Sequence[Check] = CHECKS  # for a validator
    task: asyncio.Task[None] | None = None
    actor: Actor | None = None
    trusted: TrustedState | None = None
    observer: Observer | None = None


class NodesLedger(MemoryLedger):
    """The chain as one node sees it."""

    def __init__(self, node: SimNode, chain: MemoryChain, *, run: str) -> None:
        super().__init__(chain, run=run, operator_key=node.operator_key, lag=node.lag)
        self._node = node

    def _reach(self) -> int:
        if self._node.has_no_ledger:
            raise LedgerUnavailable("none of this node's RPC end-points answers")
        return super()._reach()


class SimulatedSwarm:
    """Start with `async with SimulatedSwarm.open(folder, ...) as swarm`."""

    def __init__(
        self,
        folder: Path,
        *,
        workers: int = 2,
        validators: int = 3,
        relays: int = 2,
        trainers: int = 1,
        state_every: int = STATE_EVERY,
        terms: TermsSpec = TermsSpec(),  # noqa: B008 - frozen
        training: TrainingSpec = FAST_TRAINING,
        task: EvenTask | None = None,
        seed: int = 0,
        dtype: torch.dtype = torch.float32,
        broadcast: BroadcastSpec = BroadcastSpec(),  # noqa: B008 - frozen
        auto: bool = False,
        boards: bool = False,
        learner: Callable[[Learner], Any] = lambda learner: learner,
        prepare: Callable[[SimulatedSwarm], None] = lambda swarm: None,
    ) -> None:
        torch.set_num_threads(1)
        self.folder, self.task, self.auto = folder, task or EvenTask(), auto
        self._has_boards = boards
        self._wrap_learner = learner
        self.events = EventLog()
        self.base = write_tiny_policy(folder / "base", seed=seed, hidden=32, scale=1.0, dtype=dtype)
        self.broadcast = broadcast
        self.chain = MemoryChain()
        self.state_every, self.terms = state_every, terms
        self.trainers = [self._operator_node(f"trainer{i or ''}", "trainer") for i in range(trainers)]
        self.trainer = self.trainers[0]
        self.validators = [self._operator_node(f"validator{i}", "validator") for i in range(validators)]
        self.workers = [self._plain_node(f"worker{i}", "worker") for i in range(workers)]
        self.relays = [self._plain_node(f"relay{i}", "relay") for i in range(relays)]
        self.relay_faults = {node.name: RelayFaults() for node in self.relays}
        self.spec = self._make_spec(training)
        self.network = RecordingNetwork(
            run=self.spec.run_id,
            limits={kind: rule.max_bytes for kind, rule in ROW_RULES.items()},
            lifetimes={kind: rule.lifetime for kind, rule in ROW_RULES.items()},
        )
        self.blocks_mined = True
        self._http = httpx.AsyncClient()
        self._group: asyncio.TaskGroup | None = None
        prepare(self)

    @classmethod
    @asynccontextmanager
    async def open(cls, folder: Path, **options: object) -> AsyncIterator[SimulatedSwarm]:
        """A running swarm; everything is stopped when the block is left."""
        swarm = cls(folder, **options)  # type: ignore[arg-type]
        with swarm.events.capture():
            async with asyncio.TaskGroup() as group:
                swarm._group = group
                beside = group.create_task(swarm._mine())
                swarm._create_run()
                await swarm._start_relays()
                for node in (*swarm.trainers, *swarm.validators, *swarm.workers):
                    await swarm.start(node)
                try:
                    yield swarm
                finally:
                    for node in (*swarm.workers, *swarm.validators, *swarm.trainers, *swarm.relays):
                        await swarm.kill(node)
                    beside.cancel()
            await swarm._http.aclose()

    def moment(self) -> Moment:
        """The current state of the chain, to return to later."""
        return list(self.chain.blocks), copy.deepcopy(self.chain.model)

    def reorganise(self, past: Moment) -> None:
        """Re-org: undo every block since that moment with all transactions in them, and put others in their place."""
        lost = self.chain.head.number - past[0][-1].number
        self.chain.blocks, self.chain.model = past
        self.chain.mine(lost + 1, seconds=2)

    def commits(self) -> Sequence[Commit]:
        """Checkpoints committed so far."""
        return self.chain.model.runs[self.spec.run_id].events.commits

    def batches(self) -> list[ClosedBatch]:
        """The trainer's closed batches on its disk."""
        return Journal(self.trainer.folder / "state").batches()

    # -- setting up ----------------------------------------------------------------------------------------------

    def _plain_node(self, name: str, role: str) -> SimNode:
        folder = self.folder / name
        folder.mkdir()
        return SimNode(name, role, NodeKey.generate(), folder)

    def _operator_node(self, name: str, role: str) -> SimNode:
        node = self._plain_node(name, role)
        node.operator_key = new_key()
        return node

    def _make_spec(self, training: TrainingSpec) -> RunSpec:
        files = tuple(
            PinnedFile(name=path.name, size=path.stat().st_size, sha256=sha256(path.read_bytes()))
            for path in sorted(self.base.iterdir())
        )
        return RunSpec(
            name="simulated",
            model=ModelSpec(name="tiny", files=files),
            tasks=(TaskSpec(name=self.task.name, size=self.task.size, digest=self.task.digest),),
            sampling=FAST_SAMPLING,
            training=training,
            checks=FAST_CHECKS,
            broadcast=self.broadcast,
            terms=self.terms,
            quorum=len(self.validators) // 2 + 1,
            validators=tuple(_operator_spec(node) for node in self.validators),
            trainers=tuple(_operator_spec(node) for node in self.trainers),
            ledger=LedgerSpec(
                chain_id=self.chain.domain.chain_id,
                contract=self.chain.domain.contract,
                code_hash="0" * 64,
                deployment_block_hash=self.chain.head.hash,
            ),
        )

    def _create_run(self) -> None:
        owner = _operator(self.trainer).operator
        self.chain.create_run(RunTerms(owner=owner, created_block=0, **terms_of(self.spec)))

    async def _mine(self) -> None:
        while True:
            if self.blocks_mined and not self.chain.is_down:
                self.chain.mine()
            await asyncio.sleep(BLOCK_SECONDS)

    async def _start_relays(self) -> None:
        mounts: dict[str, httpx.AsyncBaseTransport | None] = {}
        for node in self.relays:
            await self._register(node)
            relay = Relay(
                node.key,
                root=node.folder / "store",
                run=self.spec.run_id,
                trainers=frozenset(node.key.node for node in self.trainers),
                is_member=lambda who: True,
                free_space=lambda path: 2**40,
                board=self._make_board() if self._has_boards else None,
            )
            mounts[f"http://{node.name}"] = FaultyTransport(relay, self.relay_faults[node.name])
            node.actor = relay
            assert self._group is not None
            node.task = self._group.create_task(relay.run())
        self._http = httpx.AsyncClient(mounts=mounts, trust_env=False)

    def _make_board(self) -> Board:
        return Board(
            run=self.spec.run_id,
            limits={kind: rule.max_bytes for kind, rule in ROW_RULES.items()},
            lifetimes={kind: rule.lifetime for kind, rule in ROW_RULES.items()},
            clock=self.network.clock,
        )

    def _make_union(self, dht: MemoryDirectory) -> UnionDirectory:
        return UnionDirectory(
            dht,
            relays=self.known_relays,
            http=self._http,
            run=self.spec.run_id,
            limits={kind: rule.max_bytes for kind, rule in ROW_RULES.items()},
            lifetimes={kind: rule.lifetime for kind, rule in ROW_RULES.items()},
            clock=self.network.clock,
        )

    # -- nodes ---------------------------------------------------------------------------------------------------

    async def add_worker(
        self, *, engine: Callable[[Engine], Engine] = lambda engine: engine, worker: Callable[..., Worker] = Worker
    ) -> SimNode:
        """Add a worker. `engine` wraps the honest engine; `worker` may build a dishonest one."""
        node = self._plain_node(f"worker{len(self.workers)}", "worker")
        node.engine, node.worker = engine, worker
        self.workers.append(node)
        await self.start(node)
        return node

    async def start(self, node: SimNode) -> None:
        """Run a node on its folder, as at a first start or after a kill."""
        assert self._group is not None
        node.task = self._group.create_task(self._run(node))

    async def kill(self, node: SimNode) -> None:
        """Stop a node at once, whatever it is doing."""
        if node.task is None:
            return
        node.task.cancel()
        await asyncio.wait([node.task])
        node.task = None

    def wipe(self, node: SimNode) -> None:
        """Delete a node's disk; the key is kept elsewhere."""
        while node.folder.exists():  # a thread of the killed node may still be writing
            shutil.rmtree(node.folder, ignore_errors=True)
        node.folder.mkdir()

    async def _run(self, node: SimNode) -> None:
        with structlog.contextvars.bound_contextvars(node_name=node.name, role=node.role):
            ledger = NodesLedger(node, self.chain, run=self.spec.run_id)
            dht = MemoryDirectory(self.network, faults=node.faults)
            union = self._make_union(dht) if self._has_boards else None
            directory = union or dht
            publisher = Publisher(node.key, directory, run=self.spec.run_id, state=node.folder / "sequence.json")
            node.trusted = TrustedState(self.spec)
            node.observer = Observer(trusted=node.trusted, directory=directory, ledger=ledger, interval=LOOK_SECONDS)
            compute = ComputeThread(node.name)
            try:
                node.actor = self._actor(node, ledger, publisher, compute)
                async with asyncio.TaskGroup() as group:
                    beside = [group.create_task(node.observer.run()), group.create_task(publisher.run())]
                    if union is not None:
                        beside.append(group.create_task(union.run()))
                    if node.role == "worker":
                        await self._register(node)
                    await self._act(node.actor)
                    await asyncio.sleep(0.2)  # let rows that are due be published
                    for task in beside:
                        task.cancel()
            finally:
                await compute.run(lambda: None)  # a kill ends threads too: nothing may write after it
                compute.close()

    async def _act(self, actor: Actor) -> None:
        try:
            await actor.run()
        except NodeError as error:
            log.error("node.stopped", why=str(error))
        else:
            log.info("node.ended")

    def _actor(self, node: SimNode, ledger: MemoryLedger, publisher: Publisher, compute: ComputeThread) -> Actor:
        assert node.trusted is not None
        assert node.observer is not None
        context = RunContext(
            spec=self.spec,
            node=node.key.node,
            trusted=node.trusted,
            observer=node.observer,
            voice=Voice(publisher, node=node.key.node, spec=self.spec),
            relays=self.client(node),
            compute=compute,
            clock=self.network.clock,
        )
        match node.role:
            case "trainer":
                return self._trainer(node, context, ledger)
            case "worker":
                engine = node.engine(SharedProcessEngine())
                return node.worker(context, engine=engine, task=self.task, state=node.folder)
            case _ if not self.auto:
                return self._validator(node, context, ledger)
            case _:
                return AutoValidator(trusted=context.trusted, observer=context.observer, voice=context.voice)

    def _validator(self, node: SimNode, context: RunContext, ledger: MemoryLedger) -> Validator:
        return Validator(
            context,
            ledger=ledger,
            engine=node.engine(SharedProcessEngine()),
            task=self.task,
            key=node.key,
            state=node.folder / "state",
            checks=node.checks,
        )

    def _trainer(self, node: SimNode, context: RunContext, ledger: MemoryLedger) -> Trainer:
        training = self.spec.training
        settings = GrpoSettings(learning_rate=float(training.learning_rate), optimizer_steps=training.optimizer_steps)
        with SharedProcessEngine.loading:
            learner = Learner(self.base, settings)
        return Trainer(
            context,
            ledger=ledger,
            learner=self._wrap_learner(learner),
            key=node.key,
            base=self.base,
            state=node.folder / "state",
            linger=0.0 if self.auto else 10.0,
            state_every=self.state_every,
        )

    def client(self, node: SimNode) -> RelayClient:
        """A relay client with a node's key."""
        return RelayClient(
            node.key,
            run=self.spec.run_id,
            trainers=frozenset(node.key.node for node in self.trainers),
            relays=self.known_relays,
            http=self._http,
        )

    def known_relays(self) -> list[RelayInfo]:
        """All of them."""
        return [RelayInfo(relay.key.node, f"http://{relay.name}") for relay in self.relays]

    async def _register(self, node: SimNode) -> None:
        payer = MemoryLedger(self.chain, run=self.spec.run_id, operator_key=self.trainer.operator_key)
        request = sign_registration(
            self.chain.domain, run=self.spec.run_id, node=node.key.node, nonce=1, sign_node=node.key.sign
        )
        await payer.register(request)


def _operator(node: SimNode) -> Operator:
    assert node.operator_key is not None
    address = address_of(node.operator_key)
    return Operator(node.key.node, address, address)


def _operator_spec(node: SimNode) -> OperatorSpec:
    item = _operator(node)
    return OperatorSpec(node=item.node, operator=item.operator, payout=item.payout)
