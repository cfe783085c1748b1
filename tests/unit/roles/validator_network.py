"""Validators over one in-memory directory, ledger and set of relays, with a scripted trainer and worker."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from dht.encoding import ZERO_DIGEST, encode
from dht.envelope import Envelope
from dht.identity import NodeKey
from dht.memory import MemoryDirectory, MemoryNetwork
from dht.records import Publisher, unix_ms
from ledger.memory import MemoryLedger
from ledger.records import Operator, Proposal
from ledger.rules import find_closing_block
from ledger.wallet import address_of
from roles.announce import Voice
from roles.compute import ComputeThread
from roles.context import RunContext
from roles.inference.transformers_engine import TransformersEngine
from roles.messages import ROW_RULES, SHARE_ALL, Head, OpenStep, Verdict
from roles.observer import Observer
from roles.spec import EpochSpec, RunSpec
from roles.tally import Contribution, TallyBody, TallyLeaf, build_tally, open_tally, proposal_of, read_context
from roles.trusted import AdmittedSubmission, TrustedState
from roles.validator import Validator
from roles.validator.tally_rows import row_from
from roles.worker.generation import HeldPolicy, Made
from tests.builders import (
    POLICY,
    TRAINER,
    TRAINER_OPERATOR,
    VALIDATOR_OPERATORS,
    VALIDATORS,
    WALLETS,
    WORKERS,
    MemoryRelays,
    World,
    make_chain,
    make_rollouts,
    make_spec,
    manifest_of,
    node_key,
    operator_key,
    register_workers,
    replace_key,
    shared_engine,
    shared_task,
)

PATIENCE = 20.0
JUDGES = (*zip(VALIDATORS, VALIDATOR_OPERATORS, strict=True), (node_key(14), operator_key(114)))
"""The three validators, and one that the owner may appoint."""


class ValidatorNetwork:
    """Everything around the validators, controlled by the test."""

    def __init__(self, spec: RunSpec, state: Path) -> None:
        self.spec, self.state = spec, state
        self.chain = make_chain(spec)
        self.relays = MemoryRelays()
        self.compute = ComputeThread()
        self.engine = TransformersEngine()
        self.directory = MemoryNetwork(
            run=spec.run_id,
            limits={kind: rule.max_bytes for kind, rule in ROW_RULES.items()},
            lifetimes={kind: rule.lifetime for kind, rule in ROW_RULES.items()},
        )
        self.ledger = MemoryLedger(self.chain, run=spec.run_id, operator_key=TRAINER_OPERATOR)
        self.validators: dict[str, Validator] = {}
        self.runs: list[asyncio.Task[None]] = []
        self.tasks: list[asyncio.Task[None]] = []
        self.eye = self._observer(MemoryLedger(self.chain, run=spec.run_id))  # an onlooker's view

    @property
    def trusted(self) -> TrustedState:
        """The onlooker's trusted state."""
        return self.eye.trusted

    def _observer(self, ledger: MemoryLedger) -> Observer:
        return Observer(
            trusted=TrustedState(self.spec),
            directory=MemoryDirectory(self.directory),
            ledger=ledger,
            interval=0.02,
        )

    def voice(self, key: NodeKey) -> Voice:
        """A voice whose rows go straight into the directory."""
        publisher = Publisher(key, MemoryDirectory(self.directory), run=self.spec.run_id, state=None)
        return Voice(publisher, node=key.node, spec=self.spec)

    def wallet(self, number: int) -> MemoryLedger:
        """The ledger as the holder of a worker's wallet sees it."""
        return MemoryLedger(self.chain, run=self.spec.run_id, operator_key=WALLETS[number])

    async def replace_key(self, old: NodeKey, new: NodeKey) -> None:
        """Replace a worker's key on the ledger, and let the onlooker see it."""
        await replace_key(self.ledger, self.spec.run_id, old, new)
        await self.until(lambda: self.trusted.view is not None and new.node in self.trusted.view.registrations)

    async def remove_validator(self, number: int) -> None:
        """The owner appoints the same validators except one."""
        terms = await self.ledger.terms()
        left = [item for item in terms.validators if item.node != VALIDATORS[number].node]
        await self.ledger.propose_validators(left, 2)
        self.chain.mine(1, seconds=terms.change_seconds)
        await self.ledger.apply_validators()

    async def commit(self, *, final: bool = False) -> int:
        """The trainer commits the next checkpoint, which is on the relays."""
        step = len(await self.ledger.commits())
        self.relays.checkpoints[manifest_of(step)] = POLICY
        parent = manifest_of(step - 1) if step else ZERO_DIGEST
        await self.ledger.commit_checkpoint(term=1, step=step, manifest=manifest_of(step), parent=parent, final=final)
        return step

    async def appoint(self, *numbers: int, quorum: int = 1) -> None:
        """The owner replaces the validators; the new set is in force."""
        named = [(key.node, address_of(operator)) for key, operator in (JUDGES[number] for number in numbers)]
        await self.ledger.propose_validators([Operator(node, at, at) for node, at in named], quorum)
        self.chain.mine(1, seconds=self.spec.terms.change_seconds)
        await self.ledger.apply_validators()

    async def collect(self, step: int, *, limit: int = 4, first: int = 0) -> None:
        """The trainer announces that it collects a step; the last three (or those from `first` on) are open."""
        steps = range(first or max(1, step - 2), step + 1)
        opened = tuple(OpenStep(step=s, limit=limit, share=SHARE_ALL) for s in steps)
        head = Head(
            term=1,
            step=step,
            policy_step=step - 1,
            manifest=manifest_of(step - 1),
            groups_wanted=16,
            state="collecting",
            open_steps=opened,
        )
        await self.voice(TRAINER).announce(head)
        await self.until(lambda: self.trusted.head == head)

    async def make(self, key: NodeKey = WORKERS[0], **changes: Any) -> Made:
        """An honest submission, not submitted yet."""
        world = World(self.spec, self.trusted, shared_engine(), shared_task())
        step = int(changes.get("step", 1))
        policy = HeldPolicy(step - 1, manifest_of(step - 1), POLICY)
        return await asyncio.to_thread(make_rollouts, world, key, policy=policy, **changes)

    async def hand_in(self, made: Made, key: NodeKey = WORKERS[0], *, upload: bool = True) -> Envelope:
        """The worker uploads and announces its submission."""
        relays = await self.relays.put(made.blob) if upload else ()
        return await self.voice(key).announce(made.submission, relays=relays)

    def build(self, number: int, **changes: Any) -> tuple[Validator, Observer]:
        """One of the validators, over its own state directory."""
        key, operator = JUDGES[number]
        ledger = MemoryLedger(self.chain, run=self.spec.run_id, operator_key=operator)
        observer = self._observer(ledger)
        context = RunContext(
            spec=self.spec,
            node=key.node,
            trusted=observer.trusted,
            observer=observer,
            voice=self.voice(key),
            relays=changes.pop("relays", self.relays),
            compute=self.compute,
            clock=changes.pop("clock", unix_ms),
        )
        own: dict[str, Any] = {"engine": self.engine, "state": self.state / str(number), **changes}
        validator = Validator(context, ledger=ledger, task=shared_task(), key=key, **own)
        self.validators[key.node] = validator
        return validator, observer

    def start(self, number: int, **changes: Any) -> Validator:
        """Build one of the validators and let it run."""
        validator, observer = self.build(number, **changes)
        self.runs.append(asyncio.create_task(validator.run()))
        self.tasks.append(asyncio.create_task(observer.run()))
        return validator

    async def stop(self) -> None:
        """Stop everything abruptly, as a kill would, and raise any errors."""
        for task in (*self.tasks, *self.runs):
            task.cancel()
        ended = await asyncio.gather(*self.tasks, *self.runs, return_exceptions=True)
        self.tasks, self.runs = [], []
        for error in ended:
            if isinstance(error, Exception):
                raise error

    async def promise_tally(
        self, number: int, *, hint: tuple[str, ...], round_number: int = 0, blob: str = "cd" * 32
    ) -> Envelope:
        """A validator proposes a tally whose blob is nowhere."""
        closing = await find_closing_block(self.ledger)
        assert closing is not None
        ledger = MemoryLedger(self.chain, run=self.spec.run_id, operator_key=VALIDATOR_OPERATORS[number])
        proposal = Proposal(self.spec.run_id, 0, round_number, closing.number, ZERO_DIGEST, "ab" * 32, 1, blob)
        row = row_from(proposal, await ledger.attest(proposal), size=100)
        return await self.voice(VALIDATORS[number]).announce(row, relays=hint)

    async def favour_in_tally(self, number: int, friend: NodeKey, *, round_number: int) -> None:
        """A validator proposes a tally that contains no lie but credits only one worker's submissions."""
        closing = await find_closing_block(self.ledger)
        assert closing is not None
        place: dict[str, Any] = {"spec": self.spec, "roots": (), "parent": None, "published": {}}
        context = await read_context(self.ledger, closing_block=closing.number, **place)
        items = [
            Contribution(item.row, tuple(self.trusted.standings[item.digest].rows.values()))
            for item in self.accepted()
            if item.submission.node == friend.node
        ]
        blob, proposal = build_tally(context, items, round_number=round_number)
        relays = await self.relays.put(blob)
        key, operator = JUDGES[number]
        ledger = MemoryLedger(self.chain, run=self.spec.run_id, operator_key=operator)
        row = row_from(proposal, await ledger.attest(proposal), size=len(blob))
        await self.voice(key).announce(row, relays=relays)

    async def lie_in_tally(self, number: int) -> None:
        """A validator proposes, in round 0, a tally that is honest except for its own leaf."""
        closing = await find_closing_block(self.ledger)
        assert closing is not None
        body = TallyBody(
            run=self.spec.run_id,
            epoch=0,
            round=0,
            closing_block=closing.number,
            parent_root=ZERO_DIGEST,
            parent_blob=ZERO_DIGEST,
            items=(),
            credited=((),),
            leaves=(TallyLeaf(role="worker", node=VALIDATORS[number].node, wallet=None, units=1_000_000, amount=0),),
        )
        blob = zlib.compress(encode(body))
        relays = await self.relays.put(blob)
        ledger = MemoryLedger(self.chain, run=self.spec.run_id, operator_key=VALIDATOR_OPERATORS[number])
        proposal = proposal_of(body, blob)
        row = row_from(proposal, await ledger.attest(proposal), size=len(blob))
        await self.voice(VALIDATORS[number]).announce(row, relays=relays)

    async def until_epochs(self, count: int) -> None:
        """Wait until that many tallies are final. Raises TimeoutError."""
        async with asyncio.timeout(PATIENCE):
            while len(await self.ledger.final_roots()) < count:  # noqa: ASYNC110 - the ledger has no events
                await asyncio.sleep(0.05)

    async def tokens(self, epoch: int) -> int:
        """Workers' units in a final tally."""
        root = (await self.ledger.final_roots())[epoch]
        return sum(leaf.units for leaf in open_tally(self.relays.blobs[root.blob]).leaves if leaf.role == "worker")

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait for something visible to the onlooker. Raises TimeoutError."""
        async with asyncio.timeout(PATIENCE):
            while not condition():
                await self.eye.look()
                await asyncio.sleep(0.02)

    def verdict_of(self, number: int, digest: str) -> Verdict | None:
        """A validator's verdict on a submission."""
        standing = self.trusted.standings.get(digest)
        return standing.verdicts.get(VALIDATORS[number].node) if standing else None

    def accepted(self) -> list[AdmittedSubmission]:
        """Submissions accepted by a quorum."""
        return list(self.trusted.accepted())

    async def keep_mining(self) -> None:
        """Let ledger time pass ten times as fast as ours."""
        while True:
            self.chain.mine()
            await asyncio.sleep(0.1)


@asynccontextmanager
async def running(
    state: Path, *, validators: Sequence[int] = (0, 1, 2), spec: RunSpec | None = None, **changes: Any
) -> AsyncIterator[ValidatorNetwork]:
    """A network collecting step 1, with its validators at work."""
    network = ValidatorNetwork(spec or make_spec(epoch=EpochSpec(checkpoints=3, round_seconds=30)), state)
    await register_workers(network.chain, network.spec)
    await network.commit()
    await network.collect(1)
    mining = asyncio.create_task(network.keep_mining())
    for number in validators:
        network.start(number, **changes)
    try:
        yield network
    finally:
        mining.cancel()
        await network.stop()
        network.compute.close()
