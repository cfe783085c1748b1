"""One state per output token, whatever the batch: in every family, proofs made in a ragged batch
verify against a packed prefill.

Prompts have 1 to 9 tokens (padded on the left); completions end early, at once (one token) and at the maximum. The
prefill packs them with padding on the right, and runs a shared prompt once.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast

from roles.inference.engine import Completion, Request
from roles.inference.sampling import SamplingSettings
from roles.inference.transformers_engine import TransformersEngine
from roles.toploc.encoding import BF16, FP32, Encoding
from roles.toploc.proof import build_proofs, proof_bytes
from roles.toploc.readings import Sampled, read_tokens
from roles.toploc.verify import ProofThresholds, verify_proofs, worst
from tests.unit.roles.rl.architectures import VOCABULARY, write_model

FAMILIES = ("llama", "qwen3", "gemma2", "gemma3_text", "qwen3_moe")
SETTINGS = SamplingSettings(temperature=1.0, top_p=1.0, top_k=0, max_tokens=24)
TOPK, CHUNK = 32, 8
LIMITS = {FP32: ProofThresholds(1, 0.5, 0.5), BF16: ProofThresholds(12, 8.0, 6.0)}
"""Limits for honest work on models of this size with random weights. A shift by one token gives
at least 20 mismatches of 32."""


@dataclass(frozen=True)
class Made:
    engine: TransformersEngine
    encoding: Encoding
    requests: list[Request]
    completions: list[Completion]

    @property
    def pairs(self) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
        return [(r.prompt, c.tokens) for r, c in zip(self.requests, self.completions, strict=True)]


@pytest.fixture(
    scope="module",
    params=[(family, FP32) for family in FAMILIES] + [("llama", BF16)],
    ids=lambda p: f"{p[0]}-{p[1].name}",
)
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Made:
    family, encoding = request.param
    folder = write_model(tmp_path_factory.mktemp("model"), family)
    write_tokenizer(folder)
    torch.set_num_threads(1)
    attention = "eager" if family == "gemma2" else "sdpa"  # it has no other
    engine = TransformersEngine(dtype=encoding.dtype, attention=attention)
    engine.load(folder)
    group = [Request((3, 4, 5, 6, 7, 8, 9, 10, 11), seed) for seed in range(6)]  # long enough to be run once
    ragged = [Request(tuple(range(2, 2 + size)), 100 + size) for size in range(1, 8)]
    return Made(engine, encoding, group + ragged, engine.generate(group + ragged, SETTINGS))


def write_tokenizer(folder: Path) -> None:
    words = {f"<{number}>": number for number in range(VOCABULARY)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<0>"))
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<1>", pad_token="<0>").save_pretrained(folder)


def test_proofs__of_a_ragged_batch_hold_against_a_packed_prefill__top_01_top_03_top_07(made: Made) -> None:
    ends = {completion.finish for completion in made.completions}
    assert ends == {"eos", "length"}
    proofs = build_proofs([c.states for c in made.completions], encoding=made.encoding, topk=TOPK, chunk=CHUNK)
    for completion, proof in zip(made.completions, proofs, strict=True):
        assert len(completion.states) == len(completion.tokens)
        assert len(proof) == proof_bytes(len(completion.tokens), topk=TOPK, chunk=CHUNK)
    states = [item.states for item in made.engine.prefill(made.pairs)]
    found = verify_proofs(list(zip(states, proofs, strict=True)), encoding=made.encoding, topk=TOPK, chunk=CHUNK)
    assert LIMITS[made.encoding].admits(worst(chunk for chunks in found for chunk in chunks)), found


def test_proofs__a_shift_by_one_token_is_seen__top_01(made: Made) -> None:
    longest = max(range(len(made.completions)), key=lambda i: len(made.completions[i].tokens))
    states = made.completions[longest].states
    (proof,) = build_proofs([states[:-1]], encoding=made.encoding, topk=TOPK, chunk=CHUNK)
    (found,) = verify_proofs([(states[1:], proof)], encoding=made.encoding, topk=TOPK, chunk=CHUNK)
    assert not LIMITS[made.encoding].admits(worst(found))


@pytest.mark.parametrize("count", [1, 2])
def test_proofs__of_completions_of_one_token__top_03(made: Made, count: int) -> None:
    """The state that produced the first token is the prompt's last."""
    settings = SamplingSettings(temperature=1.0, top_p=1.0, top_k=0, max_tokens=count)
    completions = made.engine.generate(made.requests, settings)
    proofs = build_proofs([c.states for c in completions], encoding=made.encoding, topk=TOPK, chunk=CHUNK)
    pairs = [(r.prompt, c.tokens) for r, c in zip(made.requests, completions, strict=True)]
    states = [item.states for item in made.engine.prefill(pairs)]
    found = verify_proofs(list(zip(states, proofs, strict=True)), encoding=made.encoding, topk=TOPK, chunk=CHUNK)
    assert LIMITS[made.encoding].admits(worst(chunk for chunks in found for chunk in chunks)), found


def test_prefill__shared_prompt_as_each_alone(made: Made) -> None:
    """What runs once for a group gives every completion the same states as running alone."""
    together = made.engine.prefill(made.pairs)
    for pair, shared in zip(made.pairs, together, strict=True):
        (alone,) = made.engine.prefill([pair])
        close = 0.2 if made.encoding is BF16 else 1e-3
        torch.testing.assert_close(shared.states, alone.states, atol=close, rtol=close)


def test_read_tokens__of_a_ragged_batch_are_the_seeded_choices(made: Made) -> None:
    sampled = [
        Sampled(c.tokens, [r.seed] * len(c.tokens), range(len(c.tokens)))
        for r, c in zip(made.requests, made.completions, strict=True)
    ]
    found = read_tokens(made.engine.prefill(made.pairs), sampled, SETTINGS, vocabulary=VOCABULARY)
    assert max(float(item.margins.max()) for item in found) < (0.3 if made.encoding is BF16 else 1e-3)
    for item, completion in zip(found, made.completions, strict=True):
        assert item.logprobs == pytest.approx(completion.logprobs, abs=0.2 if made.encoding is BF16 else 1e-3)
