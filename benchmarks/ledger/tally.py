"""CPU time to build a tally and to check it, by the number of credited submissions: every signature in it is verified.

Rows that do not fit into one tally (`roles.tally.body.MAX_ROWS`) go into the next ones, as in a run. 100,000
submissions take several, each checked on top of the one before.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from dht.encoding import encode, sha256
from dht.envelope import Envelope, seal
from dht.identity import NodeKey
from ledger.records import Commit, FinalRoot, Proposal, Registration
from ledger.wallet import address_of
from roles.messages import ROW_RULES, Submission, Verdict, place_of, subkey_for
from roles.spec import (
    LedgerSpec,
    ModelSpec,
    OperatorSpec,
    PinnedFile,
    RewardSpec,
    RunSpec,
    TaskSpec,
)
from roles.tally import Contribution, TallyContext, build_tally, check_tally, open_tally

SIZES, QUICK = (1_000, 10_000, 100_000), (1_000, 10_000)
VALIDATORS, QUORUM, STEPS, PER_STEP = 3, 2, 10, 50
NOW = 1_700_000_000_000


def measure(quick: bool) -> dict[str, Any]:
    """CPU seconds and bytes for each size."""
    sys.stdout.write("submissions  tallies  build s  check s  check ms each  blob MB\n")
    return {str(size): _measure(size) for size in (QUICK if quick else SIZES)}


def _measure(size: int) -> dict[str, Any]:
    run = _Run()
    contributions = list(run.contributions(size))
    context, tallies, build, check, bytes_ = run.context(), 0, 0.0, 0.0, 0
    while contributions:
        began = time.process_time()
        blob, proposal = build_tally(context, contributions, round_number=0)
        built = time.process_time()
        body = check_tally(blob, proposal, context)
        build, check = build + built - began, check + time.process_time() - built
        tallies, bytes_ = tallies + 1, bytes_ + len(blob)
        contributions = contributions[len(body.items) :]
        context = replace(context, roots=(*context.roots, _final(proposal)), parent=open_tally(blob))
    row = {"tallies": tallies, "build": build, "check": check, "bytes": bytes_}
    each = 1000 * check / size
    sys.stdout.write(f"{size:>11,}  {tallies:>7}  {build:>7.2f}  {check:>7.2f}  {each:>13.2f}  {bytes_ / 1e6:>7.2f}\n")
    return row


def _final(proposal: Proposal) -> FinalRoot:
    return FinalRoot(
        epoch=proposal.epoch,
        round=proposal.round,
        closing_block=0,  # keeps the window of creditable steps open
        root=proposal.root,
        total=proposal.total,
        blob=proposal.blob,
        block=200,
        attesters=(),
        amount=proposal.amount,
    )


@dataclass(frozen=True)
class _Node:
    key: NodeKey
    wallet: str


def _node(kind: int, number: int) -> _Node:
    secret = bytes([kind]) + number.to_bytes(31, "big")
    return _Node(NodeKey(secret), address_of(secret))


class _Run:
    """A run with as many workers as its submissions require."""

    def __init__(self) -> None:
        self.validators = [_node(1, number) for number in range(1, VALIDATORS + 1)]
        self.workers: list[_Node] = []
        operators = tuple(
            OperatorSpec(node=item.key.node, operator=item.wallet, payout=item.wallet) for item in self.validators
        )
        self.spec = RunSpec(
            name="benchmark",
            model=ModelSpec(name="none", files=(PinnedFile(name="model.safetensors", size=1, sha256="0" * 64),)),
            tasks=(TaskSpec(name="none", size=1, digest="0" * 64),),
            rewards=RewardSpec(budget=str(10**18)),
            quorum=QUORUM,
            validators=operators,
            trainers=operators[:1],
            ledger=LedgerSpec(
                chain_id=1, contract="0x" + "00" * 20, code_hash="0" * 64, deployment_block_hash="0" * 64
            ),
        )
        self.run = self.spec.run_id

    def contributions(self, count: int) -> Iterator[Contribution]:
        """Accepted submissions: `PER_STEP` indices of each worker and step."""
        per_worker = STEPS * PER_STEP
        self.workers = [_node(2, number) for number in range(1, -(-count // per_worker) + 1)]
        for number in range(count):
            worker, rest = self.workers[number // per_worker], number % per_worker
            yield self._contribution(worker, step=1 + rest // PER_STEP, index=rest % PER_STEP)

    def _contribution(self, worker: _Node, *, step: int, index: int) -> Contribution:
        digest = sha256(f"{worker.key.node} {step} {index}".encode())
        submission = Submission(
            run=self.run,
            node=worker.key.node,
            step=step,
            index=index,
            policy_step=step - 1,
            policy=digest,
            predecessor=digest,
            blob=digest,
            size=100_000,
            groups=4,
            completions=32,
            tokens=12_345,
        )
        row = self._row(submission, worker.key)
        verdict = Verdict(
            run=self.run,
            submission=row.digest,
            node=worker.key.node,
            step=step,
            index=index,
            outcome="accept",
            reason=0,
            audited=True,
            tokens=12_345,
        )
        return Contribution(row, tuple(self._row(verdict, item.key) for item in self.validators[:QUORUM]))

    def _row(self, message: Submission | Verdict, key: NodeKey) -> Envelope:
        record_key, _ = place_of(message, run=self.run, buckets=1)
        return seal(
            key,
            run=self.run,
            kind=message.kind,
            record_key=record_key,
            subkey=subkey_for(message, run=self.run, signer=key.node, buckets=1),
            sequence=NOW,
            expiration=NOW + ROW_RULES[message.kind].lifetime * 1000,
            payload=encode(message),
        )

    def context(self) -> TallyContext:
        """What the ledger says of this run."""
        commits = {step: Commit(1, step, f"{step:064x}", "0" * 64, False, 10 + step, step) for step in range(STEPS + 1)}
        return TallyContext(
            spec=self.spec,
            run=self.run,
            roots=(),
            parent=None,
            closing_block=100,
            validators=tuple(item.key.node for item in self.validators),
            quorum=QUORUM,
            commits=commits,
            registrations={
                item.key.node: Registration(item.key.node, item.wallet, None, 1, 1, 1) for item in self.workers
            },
            payouts={item.key.node: item.wallet for item in self.validators},
            leaders={1: self.validators[0].key.node},
            funds=10**30,
        )
