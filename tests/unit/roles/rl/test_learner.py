"""The learner: a step learns, a restart repeats it bit for bit, and a run reaches the required reward."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from roles.inference.checkpoint_loading import is_out_of_memory
from roles.rl.batch import Row, TrainingGroup, build_batch, select_rows
from roles.rl.checkpoint import CheckpointError, save_state
from roles.rl.frozen import score_still
from roles.rl.learner import Learner, TrainingDiverged
from roles.rl.policy import load_policy
from roles.rl.settings import GrpoSettings
from tests.unit.roles.rl.groups import make_group
from tests.unit.roles.rl.local_run import POLICY, LocalRun

GROUPS = [
    make_group(),
    make_group(prompt=(5, 12, 7, 20), rewards=(0.0, 1.0, 0.0, 0.0)),
    make_group(rewards=(1.0,) * 4),
]


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def make_learner(**settings: Any) -> Learner:
    return Learner(POLICY, replace(GrpoSettings(micro_batch=4), **settings))


def written(learner: Learner, folder: Path) -> bytes:
    learner.save_weights(folder)
    return (folder / "model.safetensors").read_bytes()


def test_step__metrics_of_a_known_batch() -> None:
    metrics = make_learner().step(GROUPS, step=1)
    assert (metrics.step, metrics.groups, metrics.groups_used, metrics.tokens) == (1, 3, 2, 34)
    assert metrics.reward == pytest.approx(7 / 12)
    assert metrics.reward_used == pytest.approx(3 / 8)
    assert metrics.grad_norm > 0
    assert metrics.ratio_max >= 1.0
    assert metrics.learning_rate == 1e-4


def test_step__makes_better_completions_likelier() -> None:
    learner, group = make_learner(), make_group()
    before = _logprob_gap(learner, group)
    for step in range(1, 4):
        learner.step([group], step)
    assert _logprob_gap(learner, group) > before


def _logprob_gap(learner: Learner, group: TrainingGroup) -> float:
    """Mean log-probability of the rewarded completions' tokens, minus that of the others."""
    batch = build_batch([Row(group.prompt, tokens, 0.0) for tokens in group.completions])
    scores = score_still(learner._scorer, batch, temperature=1.0)
    means = [scores[batch.sequence == number].mean() for number in range(4)]
    return float(means[0] + means[3] - means[1] - means[2])


def test_step__microbatch_size_does_not_change_the_update() -> None:
    small, large = make_learner(micro_batch=1), make_learner(micro_batch=64)
    for learner in (small, large):
        learner.step(GROUPS, 1)
    for one, other in zip(small._model.parameters(), large._model.parameters(), strict=True):
        # Adam's first step is the sign of the gradient, so only the few near-zero gradients may differ
        assert (one - other).abs().mean() < 2e-6


def test_step__nothing_to_learn_leaves_the_weights(tmp_path: Path) -> None:
    learner = make_learner()
    metrics = learner.step([make_group(rewards=(1.0,) * 4)], step=1)
    assert (metrics.groups_used, metrics.tokens, metrics.grad_norm) == (0, 0, 0.0)
    assert learner.last_step == 1
    assert written(learner, tmp_path / "new") == written(make_learner(), tmp_path / "base")


def test_step__refuse_no_groups() -> None:
    with pytest.raises(ValueError, match="at least one group"):
        make_learner().step([], step=1)


def test_step__trn_10_a_gradient_that_is_no_number_moves_nothing() -> None:
    learner = make_learner()
    with torch.no_grad():
        next(iter(learner._model.parameters()))[5] = torch.nan
    before = [parameter.detach().clone() for parameter in learner._model.parameters()]
    with pytest.raises(TrainingDiverged, match="gradient norm is nan"):
        learner.step(GROUPS, step=1)
    for old, new in zip(before, learner._model.parameters(), strict=True):
        assert torch.equal(old.nan_to_num(), new.nan_to_num())


def test_step__warm_up_is_linear_in_updates() -> None:
    learner = make_learner(warmup_steps=4)
    rates = [learner.step(GROUPS, step).learning_rate for step in (1, 2, 3)]
    assert rates == pytest.approx([0.5e-4, 1e-4, 1e-4])


def test_step__kl_is_zero_at_the_base_and_positive_after() -> None:
    learner = make_learner(optimizer_steps=1)
    assert learner.step(GROUPS, 1).kl == pytest.approx(0.0, abs=1e-9)
    assert learner.step(GROUPS, 2).kl > 0


@pytest.mark.parametrize("old_logprobs", ["current", "behaviour"])
def test_step__every_policy_is_scored_at_the_sampling_temperature(old_logprobs: Any) -> None:
    metrics = make_learner(temperature=0.5, optimizer_steps=1, old_logprobs=old_logprobs).step(GROUPS, 1)
    assert metrics.kl == pytest.approx(0.0, abs=1e-9)
    assert (metrics.ratio_max, metrics.ratio_median) == pytest.approx((1.0, 1.0), abs=1e-4)


def test_step__entropy_is_that_at_the_sampling_temperature_of_what_is_trained_on() -> None:
    learner = make_learner(temperature=0.5, optimizer_steps=1)
    batch = build_batch(select_rows(GROUPS))
    entropy = learner._scorer(batch, temperature=0.5, entropy_gradient=False).entropy.mean().item()
    assert learner.step(GROUPS, 1).entropy == pytest.approx(entropy, abs=1e-4)


def test_step__the_gradient_is_clipped() -> None:
    learner = make_learner(max_grad_norm=1e-3, optimizer_steps=1)
    assert learner.step(GROUPS, 1).grad_norm > 1e-3
    used = torch.stack(
        [parameter.grad.norm() for parameter in learner._model.parameters() if parameter.grad is not None]
    )
    assert used.norm().item() == pytest.approx(1e-3, rel=1e-2)


def test_step__trn_04_the_entropy_term_moves_the_policy() -> None:
    spread = []
    for coefficient in (0.0, 1.0):
        learner = make_learner(optimizer_steps=1, learning_rate=1e-5, entropy_coef=coefficient)
        learner.step(GROUPS, 1)
        spread.append(learner.step(GROUPS, 2).entropy)
    assert spread[1] > spread[0] + 0.005


def test_step__groups_that_agree_weaken_the_update() -> None:
    """Their tokens count in the mean: 17 of 34 teach something, and the gradient is half of what these alone give."""
    alone, diluted = (make_learner(optimizer_steps=1, kl_coef=0.0) for _ in range(2))
    whole = alone.step([make_group()], 1).grad_norm
    assert diluted.step([make_group(), make_group(rewards=(1.0,) * 4)], 1).grad_norm == pytest.approx(
        whole / 2, rel=1e-3
    )


def test_step__each_step_has_a_shuffle_of_its_own() -> None:
    norms = [make_learner().step(GROUPS, step).grad_norm for step in (1, 2)]
    assert norms[0] != norms[1]


def test_load_state__the_next_step_is_bit_equal__ckpt_11(tmp_path: Path) -> None:
    first = make_learner(warmup_steps=10)
    first.step(GROUPS, 1)
    first.step(GROUPS, 2)
    first.save_state(tmp_path / "state")
    second = Learner(POLICY, first.settings)
    second.load_state(tmp_path / "state")
    assert (second.updates, second.last_step) == (first.updates, 2)
    metrics = [replace(learner.step(GROUPS, 3), seconds=0.0, tokens_per_second=0.0) for learner in (first, second)]
    assert metrics[0] == metrics[1]
    assert written(first, tmp_path / "a") == written(second, tmp_path / "b")
    for learner, name in ((first, "c"), (second, "d")):
        learner.save_state(tmp_path / name)
    assert (tmp_path / "c" / "state.safetensors").read_bytes() == (tmp_path / "d" / "state.safetensors").read_bytes()


@pytest.mark.parametrize("moved", [0, 1])
def test_load_state__a_parameter_that_not_every_update_moved_goes_on_bit_equal(moved: int, tmp_path: Path) -> None:
    """Like an expert that received no tokens at first."""
    first = make_learner(optimizer_steps=1)
    *_, late = first._model.parameters()
    for step in (1, 2):
        late.requires_grad_(step > 2 - moved)
        first.step(GROUPS, step)
    first.save_state(tmp_path)
    second = Learner(POLICY, first.settings)
    second.load_state(tmp_path)
    late.requires_grad_()
    for learner in (first, second):
        learner.step(GROUPS, 3)
    assert written(first, tmp_path / "a") == written(second, tmp_path / "b")


@pytest.mark.parametrize("moved", ["[]", "{", '{"weight": "often"}'])
def test_load_state__refuse_counts_that_are_none(moved: str, tmp_path: Path) -> None:
    save_state(tmp_path, {}, {"updates": 1, "step": 1, "moved": moved})
    with pytest.raises(CheckpointError, match="how often each parameter was moved"):
        make_learner().load_state(tmp_path)


def test_load_state__before_any_update(tmp_path: Path) -> None:
    make_learner().save_state(tmp_path)
    again = make_learner()
    again.load_state(tmp_path)
    assert again.updates == 0


def test_load_state__another_model_is_refused_and_nothing_changes(tmp_path: Path) -> None:
    learner = make_learner()
    save_state(tmp_path / "other", {"weight.x": torch.ones(2)}, {"updates": 0, "step": 5})
    with pytest.raises(CheckpointError, match="not of the model"):
        learner.load_state(tmp_path / "other")
    assert learner.last_step == 0


def test_save_weights__loads_as_a_policy(tmp_path: Path) -> None:
    learner = make_learner()
    learner.step(GROUPS, 1)
    learner.save_weights(tmp_path / "p1")
    for name, parameter in load_policy(tmp_path / "p1").named_parameters():
        assert torch.equal(parameter, dict(learner._model.named_parameters())[name])
    assert load_file(tmp_path / "p1" / "model.safetensors").keys() == load_file(POLICY / "model.safetensors").keys()


def test_load_weights__a_state_and_its_own_checkpoint_go_on_bit_equal(tmp_path: Path) -> None:
    first = make_learner()
    first.step(GROUPS, 1)
    first.save_state(tmp_path / "state")
    first.save_weights(tmp_path / "p1")
    second = make_learner()
    second.load_state(tmp_path / "state")
    second.load_weights(tmp_path / "p1", step=1, keep_moments=True)
    for learner in (first, second):
        learner.step(GROUPS, 2)
    assert written(first, tmp_path / "a") == written(second, tmp_path / "b")


def test_load_weights__with_a_fresh_optimizer(tmp_path: Path) -> None:
    first, second = make_learner(), make_learner()
    first.step(GROUPS, 1)
    first.save_weights(tmp_path / "p1")
    second.step(GROUPS, 7)
    second.load_weights(tmp_path / "p1", step=1, keep_moments=False)
    assert (second.updates, second.last_step) == (0, 1)
    assert written(second, tmp_path / "a") == written(first, tmp_path / "b")


@pytest.mark.parametrize(
    "spoiled",
    [{"learning_rate": 0.0}, {"delta": 1.1}, {"kl_coef": -1.0}, {"optimizer_steps": 0}, {"temperature": float("nan")}],
)
def test_grpo_settings__refuse_what_cannot_work(spoiled: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="must"):
        replace(GrpoSettings(), **spoiled)  # type: ignore[arg-type]


@pytest.mark.slow
@pytest.mark.no_cover  # the tests above reach the same lines, and tracing slows the libraries
@pytest.mark.timeout(300)
@pytest.mark.parametrize(("staleness", "seed"), [(0, 1), (2, 1)])
def test_local_run__reaches_the_mark(staleness: int, seed: int) -> None:
    """From at most 0.4 to 0.85, a mean of three steps, within 20 of 16 prompts x 8 samples; within 24 where the policies
    are two updates old. Where the mark is reached the run has shown it: it goes no further."""
    curve: list[float] = []
    for metrics in LocalRun(seed=seed, staleness=staleness).steps(20 if staleness == 0 else 24):
        curve.append(metrics.reward)
        if sum(curve[-3:]) / 3 >= 0.85:
            break
    else:
        pytest.fail(f"the mark was not reached: {curve}")
    assert curve[0] <= 0.4


def test_is_out_of_memory__of_a_cpu_too() -> None:
    with pytest.raises(RuntimeError) as caught:
        torch.empty(2**55, dtype=torch.uint8)
    assert is_out_of_memory(caught.value)
    assert not is_out_of_memory(RuntimeError("shapes do not fit"))
