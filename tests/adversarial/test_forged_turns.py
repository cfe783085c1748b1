"""A run with a calculator: the tool's output cannot be passed off as the policy's, nor the reverse."""

from __future__ import annotations

from dataclasses import replace

import pytest

from roles.inference.engine import Request
from roles.rollouts.limits import rollout_limits
from roles.rollouts.schema import MalformedRollouts, RolloutFile, RolloutRow, read_rollouts, write_rollouts
from roles.rules import Reason
from roles.spec import CheckSpec, RunSpec, Threshold, ToolSpec
from roles.toploc.proof import build_proofs
from roles.turns import load_tool, own_tokens, tool_spans
from roles.worker.generation import Made
from tests.adversarial.attack import assert_only, judge
from tests.builders import World, make_rollouts, make_spec, make_world, open_rollouts, repack, sampling_of


def with_calculator(max_calls: int = 4) -> RunSpec:
    """A run whose policy has a calculator, and so cannot get a sum of its working wrong."""
    return make_spec(
        tool=ToolSpec(name="calculator", digest=load_tool("calculator", {}).digest, max_calls=max_calls, max_tokens=4)
    )


@pytest.fixture
def world() -> World:
    return make_world(with_calculator())


@pytest.fixture(scope="module")
def made() -> Made:
    return make_rollouts(make_world(with_calculator()))


def called(world: World, made: Made) -> tuple[RolloutFile, int]:
    """The file, and the number of the first row with an answer by the tool."""
    file = open_rollouts(world, made)
    return file, next(number for number, row in enumerate(file.rows) if len(row.turns) > 1)


def forged(world: World, made: Made, number: int, row: RolloutRow) -> Made:
    """The submission with this row: honest proof over what it claims to be the
    policy's tokens, and the right reward."""
    file, checks = open_rollouts(world, made), world.spec.checks
    states = world.engine.prefill([(row.prompt, row.output)])[0].states
    places = own_tokens(range(len(row.output)), row.turns)
    row = replace(
        row,
        proof=build_proofs([states[list(places)]], topk=checks.topk, chunk=checks.chunk)[0],
        reward=world.task.score(row.problem_id, world.engine.decode(row.output)),
        output_logprobs=None,
    )
    rows = (*file.rows[:number], row, *file.rows[number + 1 :])
    return repack(
        made,
        write_rollouts(replace(file, rows=rows)),
        tokens=sum(len(own_tokens(each.output, each.turns)) for each in rows),
    )


def test_honest__accepted_and_its_tokens_are_the_policys(world: World, made: Made) -> None:
    file, number = called(world, made)
    row = file.rows[number]
    start, end = next(tool_spans(row.turns, len(row.output)))
    call = world.engine.decode(row.output[:start])
    assert world.engine.decode(row.output[start:end]) == load_tool("calculator", {}).answer(call[:-1])
    assert made.submission.tokens < sum(len(row.output) for row in file.rows)
    assert judge(world, made).outcome == "accept"


def test_tools_answer_is_forged(world: World, made: Made) -> None:
    file, number = called(world, made)
    row = file.rows[number]
    start, _ = next(tool_spans(row.turns, len(row.output)))
    other = (
        world.engine.encode("0")[0] if row.output[start] != world.engine.encode("0")[0] else world.engine.encode("1")[0]
    )
    output = (*row.output[:start], other, *row.output[start + 1 :])
    assert_turns_fault(world, forged(world, made, number, replace(row, output=output)), "not what the tool answers")


def test_tools_tokens_are_claimed_as_the_policys(world: World, made: Made) -> None:
    """The worker would be paid for them."""
    file, number = called(world, made)
    row = file.rows[number]
    claimed = replace(row, turns=(len(row.output),))
    assert_turns_fault(world, forged(world, made, number, claimed), "went on after")


def test_policys_tokens_are_claimed_as_the_tools(world: World, made: Made) -> None:
    """They would not be checked against the seed."""
    file, number = called(world, made)
    row = file.rows[number]
    first, answer, second, *rest = row.turns
    turns = (first - 1, answer + 1, second, *rest)
    assert_turns_fault(world, forged(world, made, number, replace(row, turns=turns)), "answer to no call")


def test_call_is_left_unanswered(world: World, made: Made) -> None:
    file, number = called(world, made)
    row = file.rows[number]
    cut = replace(row, output=row.output[: row.turns[0]], turns=row.turns[:1], finish="length")
    assert_turns_fault(world, forged(world, made, number, cut), "without its answer")


def test_more_calls_than_the_run_allows(world: World, made: Made) -> None:
    """Refused as the file is read."""
    strict = make_world(with_calculator(max_calls=1))
    assert any(len(row.turns) > 3 for row in open_rollouts(world, made).rows)
    limits = rollout_limits(strict.spec, strict.engine.vocabulary)
    with pytest.raises(MalformedRollouts, match="turns"):
        read_rollouts(made.blob, limits)


def test_units_count_what_the_tool_said(world: World, made: Made) -> None:
    file, _ = called(world, made)
    inflated = repack(made, made.blob, tokens=sum(len(row.output) for row in file.rows))
    assert_only("units", Reason.WRONG_UNITS, world, inflated)


def test_later_turn_is_sampled_with_another_seed() -> None:
    """The row's own, which is the first turn's."""
    exact = Threshold(exponent_mismatches=2, mantissa_mean=60, mantissa_median=500, margin_mean=2, margin_largest=20)
    world = make_world(with_calculator(max_calls=1).model_copy(update={"checks": CheckSpec(honest=exact)}))
    honest = make_rollouts(world)
    rows = open_rollouts(world, honest).rows
    resampled = [(number, _last_turn_resampled(world, row)) for number, row in enumerate(rows) if len(row.turns) == 3]
    number, changed = next((number, row) for number, row in resampled if row.output != rows[number].output)
    found = judge(world, forged(world, honest, number, changed))
    assert found.outcome != "accept"
    assert found.reason in (Reason.SAMPLING_MISMATCH, Reason.SAMPLING_UNCERTAIN), found


def _last_turn_resampled(world: World, row: RolloutRow) -> RolloutRow:
    said, answer, _ = row.turns
    begun = row.output[: said + answer]
    settings = replace(sampling_of(world.spec), max_tokens=world.spec.sampling.max_tokens - said)
    tail = world.engine.generate([Request((*row.prompt, *begun), row.seed)], settings)[0]
    turns = (said, answer, len(tail.tokens))
    return replace(row, output=(*begun, *tail.tokens), turns=turns, finish=tail.finish)


def assert_turns_fault(world: World, made: Made, detail: str) -> None:
    found = judge(world, made)
    assert (found.outcome, found.reason) == ("fault", Reason.WRONG_TURNS), found
    assert detail in found.detail
    assert not list(world.trusted.accepted())
