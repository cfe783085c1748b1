"""Another model's work, tokens chosen by the worker, inserted endings, copied completions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from roles.rollouts.schema import RolloutRow
from roles.rules import Reason
from roles.spec import CheckSpec, SamplingSpec, TaskSpec, Threshold
from roles.tasks import load_task
from roles.verification import DuplicateIndex
from roles.worker.generation import Made
from tests.adversarial.attack import EXACT, assert_only, babbled, finished, forged, judge, likeliest, with_noisy_states
from tests.builders import WORKERS, World, make_rollouts, make_spec, make_world, open_rollouts, spoil


def without_margins(margin: int = 5000) -> CheckSpec:
    """A run that binds sampling to its seed loosely, or (5000) not at all."""
    honest = Threshold(exponent_mismatches=8, mantissa_mean=2000, mantissa_median=2000, margin_mean=margin)
    fraud = Threshold(exponent_mismatches=38, mantissa_mean=10_000, mantissa_median=8000, margin_mean=margin)
    return CheckSpec(honest=honest, fraud=fraud)


def test_proof_of_other_tokens__top_14() -> None:
    """The proofs of another index: true of its tokens, not of these."""
    world = make_world()
    made = make_rollouts(world)
    longest = world.spec.sampling.max_tokens
    others = [replace(row, output=(row.output * longest)[:longest]) for row in open_rollouts(world, made).rows[4:]]
    theirs = finished(world, others)[0].proof
    size = len(open_rollouts(world, made).rows[0].proof)
    assert_only(
        "proofs", Reason.PROOF_MISMATCH, world, spoil(world, made, lambda row: replace(row, proof=theirs[:size]))
    )


def test_proof_with_modulus_zero__top_09() -> None:
    world = make_world()
    hostile = spoil(world, make_rollouts(world), lambda row: replace(row, proof=bytes(len(row.proof))))
    assert_only("proofs", Reason.PROOF_MALFORMED, world, hostile)


def test_proof_is_missing__top_11() -> None:
    world = make_world()
    assert_only(
        "proofs", Reason.PROOF_MALFORMED, world, spoil(world, make_rollouts(world), lambda r: replace(r, proof=b""))
    )


def test_random_tokens_with_true_proofs__top_24() -> None:
    """Any text can be prefilled, and then its proof is genuine."""
    world = make_world()
    made = make_rollouts(world)
    rows = [babbled(world, row, seed=n) for n, row in enumerate(open_rollouts(world, made).rows)]
    assert_only("sampling", Reason.SAMPLING_MISMATCH, world, forged(world, made, rows))


def test_best_of_many_seeds_claimed_for_the_assigned_one() -> None:
    world = make_world()
    made = make_rollouts(world)
    rows = open_rollouts(world, made).rows
    lucky = make_rollouts(world, index=1)
    swapped = [
        replace(row, output=other.output, finish=other.finish)
        for row, other in zip(rows, open_rollouts(world, lucky).rows, strict=True)
    ]
    found = judge(world, forged(world, made, swapped))
    assert found.outcome != "accept"
    assert found.reason in (Reason.SAMPLING_MISMATCH, Reason.SAMPLING_UNCERTAIN)


def test_end_token_put_where_sampling_does_not_give_it() -> None:
    """A long completion would hide it in the mean of its margins; here the run's thresholds are that wide."""
    world = make_world(make_spec(checks=without_margins(1500)))
    made = make_rollouts(world)
    rows = open_rollouts(world, made).rows
    cut = [replace(rows[0], output=(*rows[0].output[:20], world.engine.eos), finish="eos"), *rows[1:]]
    assert_only("endings", Reason.BAD_TERMINATION, world, forged(world, made, cut), outcome="soft")


def test_another_model_decoded__this_one_prefilled() -> None:
    """Two rows of eight are not this policy's. Where sampling is not bound to a seed, their probabilities reveal it."""
    world = make_world(make_spec(checks=without_margins()))
    made = make_rollouts(world)
    rows = open_rollouts(world, made).rows
    mixed = [babbled(world, row, seed=n) if n < 2 else row for n, row in enumerate(likeliest(world, rows))]
    assert_only("humps", Reason.TWO_HUMPED, world, forged(world, made, mixed), outcome="soft")


def one_problem() -> World:
    """Everybody is given the same prompt, at a temperature that makes every answer improbable."""
    task = load_task("arithmetic", {"size": 1})
    spec = make_spec(
        tasks=(TaskSpec(name="arithmetic", parameters={"size": 1}, size=1, digest=task.digest),),
        sampling=SamplingSpec(temperature="4.0", group_size=4, groups_per_submission=2),
        checks=without_margins(),
    )
    world = make_world(spec)
    world.task = task
    return world


def accepted(world: World, made: Made) -> DuplicateIndex:
    """The memory of a validator that has accepted this."""
    seen = DuplicateIndex()
    assert judge(world, made, duplicates=seen).outcome == "accept"
    return seen


def with_outputs_of(world: World, mine: Made, theirs: Made, change: Callable[[RolloutRow], RolloutRow]) -> Made:
    """A submission made of another worker's completions, slightly changed."""
    rows = [
        replace(row, output=copied.output, finish=copied.finish)
        for row, copied in zip(open_rollouts(world, mine).rows, open_rollouts(world, theirs).rows, strict=True)
    ]
    return forged(world, mine, [change(row) for row in rows])


def as_it_is(row: RolloutRow) -> RolloutRow:
    return row


def one_token_changed(row: RolloutRow) -> RolloutRow:
    if len(row.output) < 3:  # too short to be anybody's
        return row
    middle = len(row.output) // 2
    others = [token for token in row.output[:-1] if token != row.output[middle]] or [row.output[middle]]
    return replace(row, output=(*row.output[:middle], others[0], *row.output[middle + 1 :]))


@pytest.mark.parametrize("change", [as_it_is, one_token_changed])
def test_copied_completions__val_09(change: Callable[[RolloutRow], RolloutRow]) -> None:
    """The copier has the same prompt; the tokens are improbable, and another worker's."""
    world = one_problem()
    original = make_rollouts(world, WORKERS[0])
    accepted(world, original)
    copy = with_outputs_of(world, make_rollouts(world, WORKERS[1]), original, change)
    found = judge(world, copy, key=WORKERS[1], duplicates=accepted(world, original))
    assert WORKERS[0].node in found.detail
    assert_only(
        "duplicates",
        Reason.DUPLICATE,
        world,
        copy,
        outcome="soft",
        key=WORKERS[1],
        duplicates=lambda: accepted(world, original),
    )


def test_completion_twice_in_one_group__val_09() -> None:
    world = one_problem()
    made = make_rollouts(world)
    rows = open_rollouts(world, made).rows
    longest = max(rows, key=lambda row: len(row.output))
    twice = [replace(row, output=longest.output, finish=longest.finish) for row in rows]
    assert_only("duplicates", Reason.DUPLICATE, world, forged(world, made, twice), outcome="soft")


def test_copy_comes_first__the_owner_keeps_its_credit__val_08() -> None:
    world = one_problem()
    seen = DuplicateIndex()
    original, mine = make_rollouts(world, WORKERS[0]), make_rollouts(world, WORKERS[1])
    copy = with_outputs_of(world, mine, original, as_it_is)
    assert judge(world, copy, key=WORKERS[1], duplicates=seen).outcome == "accept"
    assert judge(world, original, duplicates=seen).outcome == "accept"


def test_deviations_too_small_for_any_chunk__joined() -> None:
    """States off by a rounding error or two, as from other weights: tolerated in each chunk,
    but too many over all of them."""
    for change, reason, outcome in (
        ({}, Reason.JOINED_UNCERTAIN, "soft"),
        ({"fault_one_in": 10**12}, Reason.JOINED_MISMATCH, "fault"),
    ):
        world = make_world(make_spec(checks=CheckSpec(joined=EXACT.model_copy(update=change))))
        made = make_rollouts(world)
        assert judge(world, made).outcome == "accept"
        noisy = with_noisy_states(world, made)
        assert_only("joined", reason, make_world(world.spec), noisy, outcome=outcome)
