"""The shipped policy and the log-probabilities the trainer computes from it."""

import json
from pathlib import Path

import pytest
import torch
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from roles.rl.batch import Row, build_batch, mean_reward
from roles.rl.policy import PolicyError, decoder_layers, load_policy
from roles.rl.scoring import Scorer
from roles.tasks import load_task
from tests.unit.roles.rl.local_run import POLICY, Sampler

ROWS = [Row((5, 12, 6, 20), (5, 12, 6, 14, 1), 1.0), Row((5, 12, 6, 12, 7, 20), (19, 5, 1), -1.0)]


def test_default_policy__is_small_and_complete() -> None:
    assert {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"} <= {
        file.name for file in POLICY.iterdir()
    }
    parameters = sum(parameter.numel() for parameter in load_policy(POLICY).parameters())
    assert 700_000 < parameters < 800_000
    assert (POLICY / "model.safetensors").stat().st_size < 3_200_000


def test_default_policy__tokenizer_round_trips_every_prompt() -> None:
    tokenizer, task = AutoTokenizer.from_pretrained(POLICY), load_task("arithmetic", {"size": 64})
    for index in range(task.size):
        tokens = tokenizer.encode(task.prompt(index))
        assert len(tokens) == len(task.prompt(index))
        assert tokenizer.decode(tokens) == task.prompt(index)
    assert (tokenizer.pad_token_id, tokenizer.eos_token_id) == (0, 1)


def test_default_policy__both_tokenizer_classes_agree_on_every_token() -> None:
    """Which class AutoTokenizer picks depends on the version of transformers; scores must not."""
    automatic, plain = AutoTokenizer.from_pretrained(POLICY), PreTrainedTokenizerFast.from_pretrained(POLICY)
    every = list(range(21))
    assert automatic.decode(every) == plain.decode(every) == "<pad><eos>0123456789+-= ?.#;>"
    assert automatic.encode("0123456789+-= ?.#;>") == plain.encode("0123456789+-= ?.#;>") == every[2:]


def test_default_policy__about_a_third_of_its_answers_are_right__pkg_12() -> None:
    torch.manual_seed(11)
    reward = mean_reward(Sampler().sample(list(range(0, 2048, 8)), samples=4))
    assert 0.25 < reward <= 0.40


def test_scorer__are_log_softmax_at_the_temperature() -> None:
    model = load_policy(POLICY)
    prompt, completion, *_ = ROWS[0]
    scores = Scorer(model)(build_batch(ROWS[:1]), temperature=0.5, entropy_gradient=False)
    logits = model(input_ids=torch.tensor([[*prompt, *completion]])).logits[0, len(prompt) - 1 : -1] / 0.5
    distribution = torch.log_softmax(logits, -1)
    expected = [distribution[place, token].item() for place, token in enumerate(completion)]
    assert scores.logprobs.tolist() == pytest.approx(expected, abs=1e-5)
    entropy = -(distribution.exp() * distribution).sum(-1)
    assert scores.entropy.tolist() == pytest.approx(entropy.tolist(), abs=1e-5)


def test_decoder_layers__are_the_blocks_to_shard() -> None:
    assert (
        len(decoder_layers(load_policy(POLICY)))
        == json.loads((POLICY / "config.json").read_text())["num_hidden_layers"]
    )


def test_load_policy__no_such_folder(tmp_path: Path) -> None:
    with pytest.raises(PolicyError, match=r"it has no config\.json"):
        load_policy(tmp_path / "absent")


def test_load_policy__damaged_weights(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes((POLICY / "config.json").read_bytes())
    (tmp_path / "model.safetensors").write_bytes((POLICY / "model.safetensors").read_bytes()[:1000])
    with pytest.raises(PolicyError, match="cannot load the model"):
        load_policy(tmp_path)
