"""Cheats that need no statistics: each goes through the real gate and verifier, and must always be refused.

Also measures how long a validator spends on each, since none may cost it more than honest work does.
"""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass

from dht.encoding import ZERO_DIGEST
from node.testnet.adversaries.catalogue import ADVERSARIES, Adversary
from node.testnet.adversaries.forger import Forger
from roles.inference.engine import Engine
from roles.inference.transformers_engine import TransformersEngine
from roles.rules import Reason, Refusal
from roles.spec import SamplingSpec
from roles.verification import Verifier
from roles.worker.generation import HeldPolicy, Made, Ticket
from tests.builders import POLICY, WORKERS, World, make_spec, make_world, manifest_of

SLOW = ("bomb-of-zeros", "bomb-of-levels")
"""These take seconds each to make, so fewer are tried."""
FEW = 2


@dataclass(frozen=True, slots=True)
class Trial:
    """One class. `reasons`: how often each was given; `seconds`: the longest time a validator spent on one."""

    kind: str
    says: str
    tried: int
    caught: int
    reasons: dict[str, int]
    seconds: float


def try_all(count: int) -> list[Trial]:
    """Try `count` submissions of every certain adversary."""
    certain = [item for item in ADVERSARIES.values() if item.is_certain]
    return [try_one(item, min(count, FEW) if item.kind in SLOW else count) for item in certain]


def try_one(adversary: Adversary, count: int) -> Trial:
    """Try submissions of one adversary, each in a run of its own and so with other prompts and seeds."""
    reasons: Counter[str] = Counter()
    caught, longest = 0, 0.0
    engine = adversary.engine(TransformersEngine)
    engine.load(POLICY)
    for number in range(count):
        world = make_world(make_spec(name=f"trial {number}", sampling=SamplingSpec()))
        made = make_forgery(world, adversary, engine)
        began = time.perf_counter()
        reason = judge(world, made)
        longest = max(longest, time.perf_counter() - began)
        reasons[reason.name.lower()] += 1
        caught += reason in adversary.expects
    return Trial(adversary.kind, adversary.says, count, caught, dict(reasons), longest)


def make_forgery(world: World, adversary: Adversary, engine: Engine) -> Made:
    """What the adversary submits for its first index, with its engine loaded."""
    key = WORKERS[0]
    forger = Forger(world.spec, node=key.node, engine=engine, task=world.task, forgery=adversary.forgery)
    forger.loaded = HeldPolicy(0, manifest_of(0), POLICY)
    return forger.make(Ticket(step=1, index=0, seed=world.seed(key), predecessor=ZERO_DIGEST))


def judge(world: World, made: Made) -> Reason:
    """The reason a validator gives: the gate's, otherwise that of the first check to refuse, otherwise ACCEPTED."""
    try:
        admitted = world.trusted.admit_submission(world.row(made.submission, WORKERS[0]))
    except Refusal as refusal:
        return refusal.reason
    verifier = Verifier(spec=world.spec, engine=world.engine, task=world.task)
    return verifier.judge(admitted.submission, seed=admitted.seed, data=made.blob).reason
