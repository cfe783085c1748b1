"""Every model family trains packed: no row sees another's tokens, and what is published is what was trained."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from roles.rl.batch import Row, TrainingGroup, build_batch
from roles.rl.checkpoint import CheckpointError
from roles.rl.learner import Learner, UnfitGroups
from roles.rl.policy import PolicyError, load_policy
from roles.rl.scoring import Scorer
from roles.rl.settings import GrpoSettings
from tests.unit.roles.rl.architectures import FAMILIES, VOCABULARY, write_model
from tests.unit.roles.rl.groups import make_group

SETTINGS = GrpoSettings(optimizer_steps=1, learning_rate=1e-3)
ROWS = [
    Row((5, 12, 6, 20), (5, 12, 6, 14, 33, 7, 1), 1.0),
    Row((9, 12), (19, 5, 40, 1), -1.0),
    Row((3, 4, 5), (8, 8, 1), 0.5),
]


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def gradients(scorer: Scorer, packs: list[list[Row]]) -> dict[str, Tensor]:
    """Gradients of the sum of advantage-weighted log-probabilities, however the rows are split into passes."""
    scorer.zero_grad()
    for rows in packs:
        batch = build_batch(rows)
        scores = scorer(batch, temperature=0.7, entropy_gradient=True)
        torch.autograd.backward((scores.logprobs * batch.advantages + 0.1 * scores.entropy).sum())
    return {name: parameter.grad.clone() for name, parameter in scorer.named_parameters() if parameter.grad is not None}


@pytest.mark.parametrize("family", FAMILIES)
def test_scorer__packed_rows_have_the_gradients_of_rows_alone(family: str, tmp_path: Path) -> None:
    scorer = Scorer(load_policy(write_model(tmp_path / family, family)))
    assert scorer.packs
    together, alone = gradients(scorer, [ROWS]), gradients(scorer, [[row] for row in ROWS])
    assert together.keys() == alone.keys()
    for name, slope in together.items():
        torch.testing.assert_close(slope, alone[name], rtol=1e-3, atol=2e-4, msg=name)


@pytest.mark.parametrize("family", FAMILIES)
def test_scorer__rows_that_share_their_prompt_have_the_gradients_of_rows_alone(family: str, tmp_path: Path) -> None:
    """Gemma's layers look back over fewer tokens than these rows have, so some completions no longer see all of the prompt."""
    scorer = Scorer(load_policy(write_model(tmp_path / family, family)))
    assert scorer.shares
    rows = [Row(ROWS[0].prompt, row.completion, row.advantage) for row in ROWS]
    assert build_batch(rows).input_ids.shape[1] < sum(row.length for row in rows)
    together, alone = gradients(scorer, [rows]), gradients(scorer, [[row] for row in rows])
    for name, slope in together.items():
        torch.testing.assert_close(slope, alone[name], rtol=1e-3, atol=2e-4, msg=name)


@pytest.mark.parametrize("family", ["llama", "gemma2"])
def test_scorer__agrees_with_the_model_s_own_eager_logits(family: str, tmp_path: Path) -> None:
    model: Any = load_policy(write_model(tmp_path / family, family))
    scores = Scorer(model)(build_batch(ROWS), temperature=0.7, entropy_gradient=False).logprobs
    model.set_attn_implementation("eager")
    expected: list[float] = []
    for row in ROWS:
        ids = torch.tensor([[*row.prompt, *row.completion]])
        logs = (model(input_ids=ids).logits[0, len(row.prompt) - 1 : -1] / 0.7).log_softmax(-1)
        expected += [logs[place, token].item() for place, token in enumerate(row.completion)]
    assert scores.tolist() == pytest.approx(expected, abs=1e-4)


def test_scorer__a_model_whose_rows_cannot_share_a_pass_takes_them_one_by_one(tmp_path: Path) -> None:
    """Its head scales the logits, so the model's own forward pass must compute them."""
    folder = write_model(tmp_path / "granite", "granite", logits_scaling=3.0)
    scorer = Scorer(load_policy(folder))
    assert not scorer.packs
    alone = torch.cat([scorer(build_batch([row]), temperature=1.0, entropy_gradient=False).logprobs for row in ROWS])
    ids = torch.tensor([[*ROWS[0].prompt, *ROWS[0].completion]])
    logs = load_policy(folder)(input_ids=ids).logits[0, 3:-1].log_softmax(-1)
    assert alone[:7].tolist() == pytest.approx([logs[n, t].item() for n, t in enumerate(ROWS[0].completion)], abs=1e-5)
    metrics = Learner(folder, SETTINGS).step([make_group()], 1)
    assert metrics.grad_norm > 0


def test_scorer__a_model_that_attends_in_its_own_way_keeps_it(tmp_path: Path) -> None:
    """Its attention has a sink for each head, which ours does not know."""
    folder = write_model(tmp_path / "sinks", "gpt_oss", num_local_experts=4, num_experts_per_tok=2, sliding_window=4)
    scorer = Scorer(load_policy(folder))
    assert not scorer.packs
    assert scorer.model.config._attn_implementation == "eager"
    scores = scorer(build_batch(ROWS[:1]), temperature=1.0, entropy_gradient=False).logprobs
    assert bool(scores.isfinite().all())


@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma3_text", "qwen3_moe"])
def test_learner__trains_and_publishes_every_family(family: str, tmp_path: Path) -> None:
    base = write_model(tmp_path / "base", family)
    learner = Learner(base, replace(SETTINGS, entropy_coef=0.01))
    first, second = learner.step([make_group()], 1), learner.step([make_group()], 2)
    assert first.grad_norm > 0
    assert first.mismatch == pytest.approx(0.0, abs=1e-6)
    assert second.kl > first.kl
    learner.save_weights(tmp_path / "p2")
    before, after = (load_file(folder / "model.safetensors") for folder in (base, tmp_path / "p2"))
    assert {name: tensor.shape for name, tensor in before.items()} == {n: t.shape for n, t in after.items()}
    assert any(not torch.equal(before[name], after[name]) for name in before)
    trained = learner._model.state_dict()
    for name, tensor in load_policy(tmp_path / "p2").state_dict().items():
        assert torch.equal(tensor, trained[name]), name


def test_learner__a_model_that_sees_pictures_too_is_trained_on_text_and_resumed(tmp_path: Path) -> None:
    """The parts for pictures get no gradient."""
    base = write_model(tmp_path / "base", "gemma3")
    first = Learner(base, SETTINGS)
    assert first.step([make_group()], 1).grad_norm > 0
    first.save_state(tmp_path / "state")
    second = Learner(base, SETTINGS)
    second.load_state(tmp_path / "state")
    for learner, name in ((first, "a"), (second, "b")):
        learner.step([make_group()], 2)
        learner.save_weights(tmp_path / name)
    assert load_file(tmp_path / "a" / "model.safetensors").keys() == load_file(base / "model.safetensors").keys()
    assert (tmp_path / "a" / "model.safetensors").read_bytes() == (tmp_path / "b" / "model.safetensors").read_bytes()


def test_checkpoint_activations__same_gradients(tmp_path: Path) -> None:
    base = write_model(tmp_path / "base", "llama")
    plain, saving = Learner(base, SETTINGS), Learner(base, replace(SETTINGS, checkpoint_activations=True))
    norms = [learner.step([make_group()], 1).grad_norm for learner in (plain, saving)]
    assert norms[0] == norms[1]
    for one, other in zip(plain._model.parameters(), saving._model.parameters(), strict=True):
        assert torch.equal(one, other)


# -- bad input ----------------------------------------------------------------------------------------------------------


def test_load_policy__nan_weights_are_named(tmp_path: Path) -> None:
    base = write_model(tmp_path / "base", "llama")
    model: Any = load_policy(base)
    with torch.no_grad():
        model.model.layers[1].mlp.up_proj.weight[3, 3] = torch.nan
    model.save_pretrained(tmp_path / "spoiled")
    with pytest.raises(PolicyError, match=r"layers\.1\.mlp\.up_proj\.weight holds NaN"):
        load_policy(tmp_path / "spoiled")


def test_load_policy__a_tensor_that_is_missing_does_not_begin_at_random(tmp_path: Path) -> None:
    base = write_model(tmp_path / "base", "llama")
    config = (base / "config.json").read_text()
    (base / "config.json").write_text(config.replace('"num_hidden_layers": 2', '"num_hidden_layers": 3'))
    with pytest.raises(PolicyError, match="it lacks"):
        load_policy(base)


@pytest.mark.parametrize(
    ("family", "changes", "name"),
    [
        ("llama", {"num_hidden_layers": 1}, "1.input_layernorm"),
        ("qwen3", {"model_type": "llama"}, "0.self_attn.k_norm"),
    ],
)
def test_load_policy__a_tensor_too_many_is_of_another_model(
    family: str, changes: dict[str, object], name: str, tmp_path: Path
) -> None:
    base = write_model(tmp_path / "base", family)
    config = json.loads((base / "config.json").read_text())
    (base / "config.json").write_text(json.dumps({**config, **changes}))
    with pytest.raises(PolicyError, match=f"it holds .*{name}.* does not ask for"):
        load_policy(base)


def test_load_weights__another_architecture_is_refused_and_nothing_changes(tmp_path: Path) -> None:
    learner = Learner(write_model(tmp_path / "base", "llama"), SETTINGS)
    other = write_model(tmp_path / "other", "qwen3")
    before = [parameter.clone() for parameter in learner._model.parameters()]
    with pytest.raises(CheckpointError, match="another architecture"):
        learner.load_weights(other, step=3, keep_moments=False)
    assert learner.last_step == 0
    assert all(torch.equal(old, new) for old, new in zip(before, learner._model.parameters(), strict=True))


@pytest.mark.parametrize(
    ("group", "why"),
    [
        (
            make_group(completions=((7,) * 61, (7,), (7,), (7,))),
            "a sequence of 65 tokens is longer than the model's 64",
        ),
        (make_group(prompt=(5, VOCABULARY)), "another tokenizer"),
    ],
)
@pytest.mark.parametrize("family", ["llama", "gemma3"])
def test_step__groups_that_the_model_cannot_have_made(
    family: str, group: TrainingGroup, why: str, tmp_path: Path
) -> None:
    learner = Learner(write_model(tmp_path / "base", family), SETTINGS)
    with pytest.raises(UnfitGroups, match=why):
        learner.step([group], 1)
    assert learner.updates == 0
