"""A run is created only from a working model and draft: every error is a sentence, reported before gas is spent."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from dht.identity import NodeKey
from ledger.records import Operator
from node.base_model import default_model, model_files
from node.errors import ConfigError
from node.run_creation import NOWHERE, build_spec, read_draft
from roles.spec import FLOAT32_CHECKS
from roles.toploc.verify import Judgement, ProofStatistics, ProofThresholds, judge
from tests.unit.roles.rl.architectures import write_model

OPERATOR = Operator(NodeKey(bytes(32)).node, "0x" + "11" * 20, "0x" + "11" * 20)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A copy of the built-in model, for a test to spoil."""
    return Path(shutil.copytree(default_model(), tmp_path / "model"))


def draft(**changes: Any) -> dict[str, Any]:
    return {**read_draft(None), **changes}


def test_build_spec__the_built_in_draft() -> None:
    spec = build_spec(draft(), model=default_model(), place=NOWHERE, validators=[OPERATOR], trainers=[OPERATOR])
    assert spec.name == "worked sums"


@pytest.mark.parametrize(
    ("changes", "buckets"),
    [
        pytest.param({}, 1, id="small"),
        pytest.param({"training": {"max_groups": 4096}}, 4, id="great: a key has 512 rows of a validator"),
        pytest.param({"training": {"max_groups": 4096}, "buckets": 7}, 7, id="as the draft says"),
    ],
)
def test_build_spec__verdicts_of_a_step_fit_under_their_keys(changes: dict[str, Any], buckets: int) -> None:
    spec = build_spec(
        draft(**changes), model=default_model(), place=NOWHERE, validators=[OPERATOR], trainers=[OPERATOR]
    )
    assert spec.buckets == buckets


@pytest.mark.parametrize(
    ("dtype", "checks", "mantissa_mean"),
    [
        ("float32", {}, 33_000),  # units of 2^-12 of a binade
        ("float32", {"honest": {**FLOAT32_CHECKS["honest"], "mantissa_mean": 7}}, 7),
        ("bfloat16", {}, 2000),  # units of 2^-7
        ("float16", {}, 2000),
    ],
)
def test_build_spec__thresholds_of_the_dtype(dtype: str, checks: dict[str, Any], mantissa_mean: int) -> None:
    made = draft(model={"dtype": dtype}, checks=checks)
    spec = build_spec(made, model=default_model(), place=NOWHERE, validators=[OPERATOR], trainers=[OPERATOR])
    assert spec.checks.honest.mantissa_mean == mantissa_mean
    assert spec.checks.fraud.mantissa_mean > 3 * mantissa_mean


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"tasks": 3}, "tasks is a list of tables"),
        ({"tasks": [3]}, "tasks is a list of tables"),
        ({"tasks": [{"name": "chess"}]}, "unknown task 'chess'"),
        ({"model": 3}, "model is a table"),
        ({"ledger": []}, "ledger is a table"),
        ({"quorum": "x"}, "quorum: "),
        ({"quorum": 9}, "quorum must be more than half"),
        ({"colour": "red"}, "colour: there is no such setting"),
        ({"training": {"learningrate": "1"}}, "training.learningrate: .* did you mean learning_rate?"),
        ({"tasks": [{"name": "arithmetic", "weigth": 2}]}, "tasks.0.weigth: .* did you mean weight?"),
        ({"tool": {"max_call": 1, "name": "calculator"}}, "tool.max_call: .* did you mean max_calls?"),
        ({"sampling": {"temperature": 1.0}}, "sampling.temperature: a text in quotation marks"),
        ({"rewards": {"budget": "1.5"}}, "rewards.budget: '1.5' has a fraction and no unit"),
        ({"rewards": {"budget": "much"}}, "rewards.budget: 'much' is not an amount"),
        ({"rewards": {"budget": 5}}, "rewards.budget: a text in quotation marks"),
        (
            {"rewards": {"min_stake": "1eth", "token": "0x" + "11" * 20}},
            "rewards.min_stake: .* of a token in base units only",
        ),
        ({"name": {1, 2}}, "holds a date, a time or another value"),
    ],
)
def test_build_spec__wrong_field_is_named(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        build_spec(draft(**changes), model=default_model(), place=NOWHERE, validators=[OPERATOR], trainers=[OPERATOR])


@pytest.mark.parametrize(
    ("rewards", "budget", "min_stake"),
    [
        ({"budget": "1000"}, "1000", "0"),
        ({"budget": "0"}, "0", "0"),
        ({"budget": "1.5eth", "min_stake": "20 gwei"}, "1500000000000000000", "20000000000"),
        ({"budget": "1000", "token": "0x" + "11" * 20}, "1000", "0"),
    ],
)
def test_build_spec__amounts_may_have_a_unit(rewards: dict[str, str], budget: str, min_stake: str) -> None:
    spec = build_spec(
        draft(rewards=rewards), model=default_model(), place=NOWHERE, validators=[OPERATOR], trainers=[OPERATOR]
    )
    assert (spec.rewards.budget, spec.rewards.min_stake) == (budget, min_stake)


def test_build_spec__a_trainer_listed_twice() -> None:
    with pytest.raises(ConfigError, match="trainers: a node is listed twice"):
        build_spec(draft(), model=default_model(), place=NOWHERE, validators=[OPERATOR], trainers=[OPERATOR, OPERATOR])


def test_model_files__without_weights(model: Path) -> None:
    (model / "model.safetensors").unlink()
    with pytest.raises(ConfigError, match=r"holds no \.safetensors file"):
        model_files(model)


@pytest.mark.parametrize("size", [0, 7, 100, 100_000])
def test_model_files__truncated_weights(model: Path, size: int) -> None:
    path = model / "model.safetensors"
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(ConfigError, match="is not a whole safetensors file"):
        model_files(model)


@pytest.mark.parametrize("header", [b"[]", b"{}", b'{"w":3}', b'{"w":{"data_offsets":[]}}', b"\xff"])
def test_model_files__weights_with_a_wrong_header(model: Path, header: bytes) -> None:
    (model / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)
    with pytest.raises(ConfigError, match="is not a whole safetensors file"):
        model_files(model)


def test_model_files__a_model_that_engines_load_whole_though_it_takes_pictures_too(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "model", "gemma3")
    assert json.loads((folder / "config.json").read_text())["architectures"] == ["Gemma3ForConditionalGeneration"]
    assert "model.safetensors" in [item["name"] for item in model_files(folder)]


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ("nonsense", "names no architectures"),
        ("{}", "names no architectures"),
        (json.dumps({"architectures": ["BertForMaskedLM"]}), "a causal language model is needed"),
        (
            json.dumps({"architectures": ["T5ForConditionalGeneration"], "model_type": "t5"}),
            "a causal language model is needed",
        ),
        (
            json.dumps({"architectures": ["Qwen2VLForConditionalGeneration"], "model_type": "qwen2_vl"}),
            "a causal language model is needed",
        ),
    ],
)
def test_model_files__not_a_causal_language_model(model: Path, config: str, said: str) -> None:
    (model / "config.json").write_text(config)
    with pytest.raises(ConfigError, match=said):
        model_files(model)


@pytest.mark.parametrize(("exchanged", "judgement"), [(1, Judgement.HONEST), (2, Judgement.DOUBTFUL)])
def test_float32_checks__values_that_an_honest_machine_chose_otherwise_are_no_fault(
    exchanged: int, judgement: Judgement
) -> None:
    """Among nearly equal values either may be one of the largest; where the exponents agree by chance, the mantissas may
    be as far apart as they can be."""
    chunk = ProofStatistics(exponent_mismatches=0, mantissa_mean=exchanged * 4095 / 128, mantissa_median=0.0)
    limits = [
        ProofThresholds(values["exponent_mismatches"], values["mantissa_mean"] / 1000, values["mantissa_median"] / 1000)
        for values in (FLOAT32_CHECKS["honest"], FLOAT32_CHECKS["fraud"])
    ]
    assert judge([chunk], honest=limits[0], fraud=limits[1]) is judgement
