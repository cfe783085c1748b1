"""Behaviour specific to the transformers engine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM
from transformers.integrations import hub_kernels

from roles.inference.checkpoint_loading import check_fits, is_out_of_memory, read_shapes
from roles.inference.engine import Request, SamplingSettings
from roles.inference.errors import BadCheckpoint, OutOfMemory, SequenceTooLong
from roles.inference.transformers_engine import TransformersEngine
from roles.rl import attention
from roles.rl.policy import load_policy
from tests.unit.roles.inference.test_alignment import write_tokenizer
from tests.unit.roles.inference.tiny_policy import write_tiny_policy
from tests.unit.roles.rl.architectures import FAMILIES, write_model

SETTINGS = SamplingSettings(temperature=1.0, top_p=1.0, top_k=0, max_tokens=12)
REQUESTS = [Request((1, 2, 3, 4, 5)[: 1 + i % 5], i) for i in range(12)]


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


class LittleMemory(TransformersEngine):
    """Has memory for this many rows."""

    room = 3

    def _generate_batch(self, requests: Any, settings: SamplingSettings) -> Any:
        if len(requests) > self.room:
            torch.empty(1 << 60)  # the allocator's own error
        return super()._generate_batch(requests, settings)

    def _prefill_batch(self, pairs: Any) -> Any:
        if len(pairs) > self.room:
            torch.empty(1 << 60)
        return super()._prefill_batch(pairs)

    def _prefill_shared(self, prompt: Any, outputs: Any) -> Any:
        if len(outputs) > self.room:
            torch.empty(1 << 60)
        return super()._prefill_shared(prompt, outputs)


def test_generate__small_batches_change_nothing(tmp_path: Path) -> None:
    folder = write_tiny_policy(tmp_path / "a", seed=1)
    said = []
    for engine in (TransformersEngine(), TransformersEngine(max_rows=5), LittleMemory()):
        engine.load(folder)
        said.append([c.tokens for c in engine.generate(REQUESTS, SETTINGS)])
    assert said[0] == said[1] == said[2]


def test_generate__a_model_that_sees_pictures_too(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "a", "gemma3")
    write_tokenizer(folder)
    engine = TransformersEngine()
    engine.load(folder)
    (said,) = engine.generate(REQUESTS[:1], SETTINGS)
    (read,) = engine.prefill([(REQUESTS[0].prompt, said.tokens)])
    torch.testing.assert_close(read.states, said.states, rtol=1e-4, atol=1e-4)
    with pytest.raises(SequenceTooLong):
        engine.generate([Request((1,) * 60, 1)], SETTINGS)


def test_prefill__small_batches_change_nothing(tmp_path: Path) -> None:
    folder = write_tiny_policy(tmp_path / "a", seed=1)
    asked = [(request.prompt, tuple(range(1, 12 + i % 3))) for i, request in enumerate(REQUESTS)]
    plain, little = TransformersEngine(), LittleMemory()
    for engine in (plain, little):
        engine.load(folder)
    for one, other in zip(plain.prefill(asked), little.prefill(asked), strict=True):
        assert torch.allclose(one.states, other.states, atol=1e-4)
    little.room = 0
    with pytest.raises(OutOfMemory, match="no memory left for one sequence"):
        little.prefill(asked)


def test_prefill__of_one_prompt_gets_smaller_too(tmp_path: Path) -> None:
    folder = write_tiny_policy(tmp_path / "a", seed=1)
    asked = [(tuple(range(1, 10)), tuple(range(1, 6 + i % 3))) for i in range(12)]
    plain, little = TransformersEngine(), LittleMemory()
    for engine in (plain, little):
        engine.load(folder)
    for one, other in zip(plain.prefill(asked), little.prefill(asked), strict=True):
        assert torch.allclose(one.states, other.states, atol=1e-4)


def test_generate__no_memory_for_one_row(tmp_path: Path) -> None:
    engine = LittleMemory()
    engine.room = 0
    engine.load(write_tiny_policy(tmp_path / "a"))
    with pytest.raises(OutOfMemory, match="no memory left for one sequence"):
        engine.generate(REQUESTS, SETTINGS)


def test_is_out_of_memory__no_other_error() -> None:
    with pytest.raises(RuntimeError) as caught:
        torch.zeros(2) @ torch.zeros(3)
    assert not is_out_of_memory(caught.value)


def test_load__other_architecture(tmp_path: Path) -> None:
    engine = TransformersEngine()
    engine.load(write_tiny_policy(tmp_path / "a"))
    engine.load(write_tiny_policy(tmp_path / "wide", hidden=64))
    assert engine.prefill([((1,), (2,))])[0].states.shape == (1, 64)


@pytest.mark.parametrize("family", FAMILIES)
def test_load__families_swap_and_give_the_models_own_logits(family: str, tmp_path: Path) -> None:
    first, second = (write_model(tmp_path / name, family, initializer_range=r) for name, r in (("a", 0.2), ("b", 0.3)))
    for folder in (first, second):
        write_tokenizer(folder)
    engine = TransformersEngine(attention="eager")
    engine.load(first)
    engine.load(second)
    plain = AutoModelForCausalLM.from_pretrained(second, attn_implementation="eager", dtype=torch.float32).eval()
    with torch.no_grad():
        expected = plain(torch.tensor([[1, 2, 3, 4]])).logits[0, 1:]
    assert torch.allclose(engine.prefill([((1, 2), (3, 4, 5))])[0].logits, expected, atol=1e-4)


def spoil_config(folder: Path, **changes: Any) -> Path:
    """Write these into its config.json, as the checkpoint's maker could."""
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))
    return folder


def test_load__code_on_the_hub_that_a_checkpoint_names_as_its_kernel_is_not_fetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the package `kernels` is installed, transformers takes `_attn_implementation` of config.json before the argument,
    fetches that repository, and imports it."""
    fetched: list[str] = []
    monkeypatch.setattr(hub_kernels, "is_kernels_available", lambda *_: True)
    monkeypatch.setattr(hub_kernels, "get_kernel", lambda name, **_: fetched.append(name))
    folder = spoil_config(write_tiny_policy(tmp_path / "a"), _attn_implementation="somebody/code")
    engine = TransformersEngine(attention="eager")
    engine.load(folder)
    check_fits(folder, read_shapes(folder))
    assert engine._model.config._attn_implementation == "eager"
    policy: Any = load_policy(folder)
    assert policy.config._attn_implementation == attention.NAME
    assert not fetched


@pytest.mark.parametrize(
    "changes",
    [
        {"num_attention_heads": 0},
        {"quantization_config": {"quant_method": "bitsandbytes", "load_in_8bit": True}},
        {"quantization_config": {"quant_method": "gptq", "bits": 4}},
    ],
)
def test_load__checkpoint_that_the_library_stumbles_over_is_refused(tmp_path: Path, changes: dict[str, Any]) -> None:
    """It ends nothing: the previous weights stay loaded."""
    engine = TransformersEngine()
    engine.load(write_tiny_policy(tmp_path / "a"))
    said = engine.generate(REQUESTS[:1], SETTINGS)[0].tokens
    with pytest.raises(BadCheckpoint, match="not a checkpoint this engine can run"):
        engine.load(spoil_config(write_tiny_policy(tmp_path / "b", seed=1), **changes))
    assert engine.generate(REQUESTS[:1], SETTINGS)[0].tokens == said


def test_load__weights_of_a_format_that_nothing_can_be_asked_of_are_refused(tmp_path: Path) -> None:
    engine = TransformersEngine()
    engine.load(write_tiny_policy(tmp_path / "a"))
    said = engine.generate(REQUESTS[:1], SETTINGS)[0].tokens
    file = write_tiny_policy(tmp_path / "b", seed=1) / "model.safetensors"
    weights = {name: tensor.to(torch.float8_e4m3fn) for name, tensor in load_file(file).items()}
    save_file(weights, file, metadata={"format": "pt"})
    with pytest.raises(BadCheckpoint, match="not a checkpoint this engine can run"):
        engine.load(tmp_path / "b")
    assert engine.generate(REQUESTS[:1], SETTINGS)[0].tokens == said
