"""Every adversary of `node.testnet.adversaries` that must always be refused goes through the real gate and verifier: it
is refused for a fitting reason, and no trusted state moves."""

from __future__ import annotations

import functools

import pytest

from benchmarks.attacks.certain import judge, make_forgery
from node.testnet.adversaries.catalogue import ADVERSARIES, Adversary
from node.testnet.adversaries.kinds import KINDS
from roles.inference.engine import Engine
from roles.inference.transformers_engine import TransformersEngine
from roles.rules import Reason
from roles.spec import SamplingSpec
from roles.worker.generation import Made
from tests.builders import POLICY, World, make_spec, make_world

SLOW = ("bomb-of-zeros", "bomb-of-levels")  # made in seconds each; `benchmarks.attacks` has them
CERTAIN = [kind for kind, item in KINDS.items() if item.is_certain and kind not in SLOW]
SMALL = SamplingSpec(max_tokens=24, group_size=2, groups_per_submission=2)
SHOWN_BY_THE_BUILT_IN_POLICY = (
    "smaller",
    "fewer-layers",
    "int4",
    "other-model",
    "other-prompt",
    "hybrid",
    "early-end",
)


@functools.cache
def honest_engine() -> Engine:
    engine = TransformersEngine()
    engine.load(POLICY)
    return engine


def forge(world: World, adversary: Adversary) -> Made:
    """What the adversary submits for its first index."""
    changes_weights = adversary.kind in SHOWN_BY_THE_BUILT_IN_POLICY
    engine = adversary.engine(TransformersEngine if changes_weights else honest_engine)
    engine.load(POLICY)
    return make_forgery(world, adversary, engine)


@pytest.mark.parametrize("kind", [*CERTAIN, *SHOWN_BY_THE_BUILT_IN_POLICY])
def test_adversary__is_refused_for_a_reason_that_fits(kind: str) -> None:
    world = make_world(make_spec(sampling=SMALL))
    made = forge(world, ADVERSARIES[kind])
    assert judge(world, made) in ADVERSARIES[kind].expects
    assert not list(world.trusted.accepted())


def test_forger__without_a_forgery_is_the_honest_worker() -> None:
    world = make_world(make_spec(sampling=SMALL))
    honest = Adversary("int8", ())
    assert judge(world, forge(world, honest)) is Reason.ACCEPTED


def test_catalogue__has_every_kind_that_the_command_line_knows() -> None:
    assert list(ADVERSARIES) == list(KINDS)
