"""`intellect-node model`: folders that an engine can run, and refusals."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForImageTextToText
from transformers.integrations import hub_kernels

from node.base_model import default_model, model_files
from node.cli import dispatch
from node.errors import ConfigError
from node.models import KINDS, find_source, import_model
from roles.inference.engine import Request, SamplingSettings
from roles.inference.transformers_engine import TransformersEngine

GREEDY = SamplingSettings(temperature=0.0, top_p=1.0, top_k=0, max_tokens=4)


@pytest.mark.parametrize("kind", KINDS)
def test_make__engine_runs_it(tmp_path: Path, kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert dispatch(["model", "make", str(tmp_path / "model"), "--kind", kind]) == 0
    engine = TransformersEngine()
    engine.load(tmp_path / "model")
    (completion,) = engine.generate([Request(engine.encode("1+1>"), 7)], GREEDY)
    assert completion.tokens
    assert "parameters in" in capsys.readouterr().out


def test_make__same_seed_same_weights(tmp_path: Path) -> None:
    for name in ("one", "two"):
        dispatch(["model", "make", str(tmp_path / name)])
    one, two = ((tmp_path / name / "model.safetensors").read_bytes() for name in ("one", "two"))
    assert one == two


def test_import__folder_in_another_dtype(tmp_path: Path) -> None:
    count = import_model(default_model(), tmp_path / "model", dtype="bfloat16")
    sizes = [(folder / "model.safetensors").stat().st_size for folder in (default_model(), tmp_path / "model")]
    assert count > 500_000
    assert sizes[1] < 0.6 * sizes[0]


def test_import__code_that_the_folder_names_as_its_kernel_is_not_fetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetched: list[str] = []
    monkeypatch.setattr(hub_kernels, "is_kernels_available", lambda *_: True)
    monkeypatch.setattr(hub_kernels, "get_kernel", lambda name, **_: fetched.append(name))
    source = shutil.copytree(default_model(), tmp_path / "source")
    config = json.loads((source / "config.json").read_text())
    (source / "config.json").write_text(json.dumps(config | {"_attn_implementation": "somebody/code"}))
    assert import_model(source, tmp_path / "model", dtype="float32") > 500_000
    assert not fetched


def test_import__a_folder_that_lacks_weights_is_refused(tmp_path: Path) -> None:
    """The library fills what is missing with random numbers and only warns."""
    source = Path(shutil.copytree(default_model(), tmp_path / "source"))
    weights = load_file(source / "model.safetensors")
    del weights[next(name for name in weights if "q_proj" in name)]
    save_file(weights, source / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ConfigError, match=r"lacks weights of the model: .*q_proj"):
        import_model(source, tmp_path / "model", dtype="float32")
    assert not (tmp_path / "model").exists()


def test_import__the_part_of_a_model_that_reads_and_writes_text(tmp_path: Path) -> None:
    """A model that also takes pictures, loaded without the parts for them. A run takes the output, not the input."""
    small = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2}
    text = {**small, "num_key_value_heads": 2, "head_dim": 16, "intermediate_size_mlp": 48, "num_local_experts": 2}
    config = AutoConfig.for_model(
        "llama4",
        text_config={**text, "vocab_size": 64, "pad_token_id": 0},
        vision_config={**small, "num_hidden_layers": 1, "image_size": 28, "patch_size": 14, "vision_output_dim": 32},
    )
    whole: Any = AutoModelForImageTextToText.from_config(config)
    whole.save_pretrained(tmp_path / "whole")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(default_model() / name, tmp_path / "whole" / name)
    with pytest.raises(ConfigError, match=r"Llama4ForCausalLM.*: intellect-node model import .*whole DIR"):
        model_files(tmp_path / "whole")
    import_model(tmp_path / "whole", tmp_path / "text", dtype="float32")
    assert model_files(tmp_path / "text")
    held, made = (load_file(tmp_path / name / "model.safetensors") for name in ("whole", "text"))
    name = "layers.0.self_attn.q_proj.weight"
    assert torch.equal(made[f"model.{name}"], held[f"language_model.model.{name}"])
    assert not any("vision" in each for each in made)


def test_import__existing_folder_is_not_written_over(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="exists already"):
        import_model(default_model(), tmp_path, dtype="float32")


def test_import__broken_file_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "config.json").write_text("{}")
    with pytest.raises(ConfigError, match="cannot be read as a model"):
        import_model(tmp_path / "source", tmp_path / "model", dtype="float32")
    assert [path.name for path in tmp_path.iterdir()] == ["source"]


@pytest.mark.parametrize(("source", "reason"), [("no-such-thing", "neither a file"), ("numpy", "holds 0 GGUF files")])
def test_find_source__refuse(source: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        find_source(source)
