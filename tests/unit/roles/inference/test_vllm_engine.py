"""Behaviour specific to the vLLM engine: generation pre-empted and in chunks; and each engine verified by the other."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from roles.inference.engine import Completion, Engine, Request, SamplingSettings
from roles.inference.errors import InferenceError, OutOfMemory
from roles.inference.transformers_engine import TransformersEngine
from roles.inference.vllm_engine import VllmEngine, VllmSettings
from roles.toploc.encoding import BF16, FP32
from roles.toploc.proof import build_proofs
from roles.toploc.readings import Sampled, read_tokens
from roles.toploc.verify import ProofThresholds, verify_proofs, worst
from tests.unit.roles.inference.test_alignment import write_tokenizer
from tests.unit.roles.inference.tiny_policy import write_tiny_policy
from tests.unit.roles.rl.architectures import write_model

INSTALLED = importlib.util.find_spec("vllm") is not None
needs_vllm = pytest.mark.skipif(not INSTALLED, reason="vLLM is not installed")
SETTINGS = SamplingSettings(temperature=1.0, top_p=1.0, top_k=0, max_tokens=100)
REQUESTS = [Request(tuple(1 + (i + j) % 18 for j in range(60 + 2 * (i % 4))), seed=2**62 + i) for i in range(12)]
LIMITS = {FP32: ProofThresholds(1, 0.5, 0.5), BF16: ProofThresholds(38, 10.0, 8.0)}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_policy(tmp_path_factory.mktemp("policy") / "a", seed=1)


@pytest.fixture(scope="module")
def plain(folder: Path) -> TransformersEngine:
    engine = TransformersEngine()
    engine.load(folder)
    return engine


@pytest.mark.skipif(INSTALLED, reason="vLLM is installed")
@pytest.mark.parametrize(("device", "extra"), [("cpu", "vllm-cpu"), ("cuda", "vllm")])
def test_engine__not_installed__pkg_10(device: str, extra: str) -> None:
    with pytest.raises(InferenceError, match=rf"intellect-node\[{extra}\]"):
        VllmEngine(device=device)


@needs_vllm
def test_generate__pre_empted_and_in_chunks__top_05_top_06(folder: Path, plain: TransformersEngine) -> None:
    """Memory for the keys and values of a third of the batch, and prompts longer than one pass."""
    block = 32 * 3 * 2 * 128 * 4  # tokens, layers, keys and values, width, bytes
    engine = VllmEngine(
        settings=VllmSettings(kv_cache_bytes=12 * block, block_tokens=32, max_batched_tokens=48, max_rows=16)
    )
    engine.load(folder)
    preempted = count_preemptions(engine)
    completions = engine.generate(REQUESTS, SETTINGS)
    assert len(preempted) >= 2
    assert [c.tokens for c in completions] == [c.tokens for c in plain.generate(REQUESTS, SETTINGS)]
    for completion, prefill in zip(completions, plain.prefill(pairs(completions)), strict=True):
        assert torch.allclose(completion.states, prefill.states, atol=1e-3)
    for mine, other in zip(engine.prefill(pairs(completions)), plain.prefill(pairs(completions)), strict=True):
        assert torch.allclose(mine.states, other.states, atol=1e-3)
        assert torch.allclose(mine.logits, other.logits, atol=1e-3)


@needs_vllm
def test_generate__after_memory_ran_out_only_what_is_asked_then_is_said(
    folder: Path, plain: TransformersEngine
) -> None:
    engine = VllmEngine(settings=VllmSettings(kv_cache_bytes=1 << 26))
    engine.load(folder)
    fail_at(engine, call=5)
    with pytest.raises(OutOfMemory):
        engine.generate(REQUESTS, SETTINGS)
    half = REQUESTS[6:]
    assert [c.tokens for c in engine.generate(half, SETTINGS)] == [c.tokens for c in plain.generate(half, SETTINGS)]


@needs_vllm
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_engines__each_holds_against_the_other(folder: Path, dtype: torch.dtype) -> None:
    engines: list[Engine] = [
        TransformersEngine(dtype=dtype),
        VllmEngine(dtype=dtype, settings=VllmSettings(kv_cache_bytes=1 << 26)),
    ]
    encoding = FP32 if dtype == torch.float32 else BF16
    for engine in engines:
        engine.load(folder)
    for worker, validator in (engines, reversed(engines)):
        completions = worker.generate(REQUESTS, SETTINGS)
        proofs = build_proofs([c.states for c in completions], encoding=encoding)
        prefills = validator.prefill(pairs(completions))
        states = [item.states for item in prefills]
        found = verify_proofs(list(zip(states, proofs, strict=True)), encoding=encoding)
        assert LIMITS[encoding].admits(worst(chunk for chunks in found for chunk in chunks))
        sampled = [
            Sampled(c.tokens, [r.seed] * len(c.tokens), range(len(c.tokens)))
            for r, c in zip(REQUESTS, completions, strict=True)
        ]
        margins = torch.cat(
            [torch.from_numpy(each.margins) for each in read_tokens(prefills, sampled, SETTINGS, vocabulary=20)]
        )
        assert float(margins.clamp(max=5).mean()) < (1e-5 if encoding is FP32 else 0.05)


@needs_vllm
@pytest.mark.parametrize(
    ("family", "changes"), [("gemma2", {}), ("qwen3", {}), ("qwen3_moe", {"moe_intermediate_size": 32})]
)
def test_load__families_swap_and_agree_with_transformers(family: str, changes: dict[str, int], tmp_path: Path) -> None:
    sizes = {"hidden_size": 64, "head_dim": 32, **changes}  # what vLLM's kernels for CPUs take
    first, second = (
        write_model(tmp_path / n, family, initializer_range=r, **sizes) for n, r in (("a", 0.2), ("b", 0.3))
    )
    vllm, plain = VllmEngine(settings=VllmSettings(kv_cache_bytes=1 << 26)), TransformersEngine(attention="eager")
    for folder in (first, second):
        write_tokenizer(folder)
        vllm.load(folder)
    plain.load(second)
    settings = SamplingSettings(temperature=1.0, top_p=1.0, top_k=0, max_tokens=12)
    requests = [Request((2, 3, 4, 5, 6)[: 1 + i % 5], i) for i in range(8)]
    said = vllm.generate(requests, settings)
    assert [c.tokens for c in said] == [c.tokens for c in plain.generate(requests, settings)]
    asked = [(r.prompt, c.tokens) for r, c in zip(requests, said, strict=True)]
    for mine, other in zip(vllm.prefill(asked), plain.prefill(asked), strict=True):
        assert torch.allclose(mine.logits, other.logits, atol=1e-3)


def pairs(completions: Sequence[Completion]) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    return [(r.prompt, c.tokens) for r, c in zip(REQUESTS, completions, strict=True)]


def count_preemptions(engine: VllmEngine) -> list[Any]:
    """Collects the requests that vLLM pre-empts."""
    scheduler = engine._llm.llm_engine.engine_core.engine_core.scheduler
    put_off, preempt = [], scheduler._preempt_request

    def watched(request: Any, *given: Any, **named: Any) -> Any:
        put_off.append(request.request_id)
        return preempt(request, *given, **named)

    scheduler._preempt_request = watched
    return put_off


def fail_at(engine: VllmEngine, *, call: int) -> None:
    """The model runs out of memory at that pass, once."""
    calls = iter(range(1, 10_000))

    def hook(module: torch.nn.Module, arguments: Any) -> None:
        if next(calls) == call:
            raise torch.OutOfMemoryError("no memory")

    llm: Any = engine._llm
    llm.apply_model(lambda model: bool(model.register_forward_pre_hook(hook)))
