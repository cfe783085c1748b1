"""The engine: seeded generation in a batch equals what one prefill says, whatever the batch."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from roles.inference.engine import Completion, Request, SamplingSettings
from roles.inference.errors import BadCheckpoint
from roles.inference.sampling import choose
from roles.inference.transformers_engine import TransformersEngine
from tests.unit.roles.inference.tiny_policy import EOS, make_tiny_model, write_tiny_policy

SETTINGS = SamplingSettings(temperature=1.0, top_p=1.0, top_k=0, max_tokens=40)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_policy(tmp_path_factory.mktemp("policy") / "a", seed=1)


@pytest.fixture(scope="module")
def engine(checkpoint: Path) -> TransformersEngine:
    torch.set_num_threads(1)
    engine = TransformersEngine()
    engine.load(checkpoint)
    return engine


def make_requests(engine: TransformersEngine, count: int = 12) -> list[Request]:
    return [Request(engine.encode("17+14+11+6>"[: 1 + i % 9]), seed=2**62 + i) for i in range(count)]


def chosen(logits: torch.Tensor, request: Request) -> torch.Tensor:
    """What seeded sampling gives for a completion's logits `[T, vocabulary]`."""
    positions = torch.arange(len(logits))
    return choose(logits, torch.full_like(positions, request.seed), positions, SETTINGS)


@pytest.fixture(scope="module")
def requests(engine: TransformersEngine) -> list[Request]:
    return make_requests(engine)


@pytest.fixture(scope="module")
def completions(engine: TransformersEngine, requests: list[Request]) -> list[Completion]:
    return engine.generate(requests, SETTINGS)


def test_generate__one_state_and_logprob_per_token__top_05(completions: list[Completion]) -> None:
    for completion in completions:
        assert completion.states.shape == (len(completion.tokens), 128)
        assert completion.states.dtype == torch.float32  # the engine's own
        assert len(completion.logprobs) == len(completion.tokens)
        assert max(completion.logprobs) <= 0


def test_generate__rows_end_apart(completions: list[Completion]) -> None:
    assert {completion.finish for completion in completions} == {"eos", "length"}
    for completion in completions:
        assert (completion.tokens[-1] == EOS) == (completion.finish == "eos")
        assert EOS not in completion.tokens[:-1]
        assert completion.finish == "eos" or len(completion.tokens) == SETTINGS.max_tokens


def test_generate__same_alone_and_in_a_batch(
    engine: TransformersEngine, requests: list[Request], completions: list[Completion]
) -> None:
    for request, together in zip(requests[:4], completions, strict=False):
        assert engine.generate([request], SETTINGS)[0].tokens == together.tokens


def test_generate__state_produced_its_token__top_01_04_07(
    engine: TransformersEngine, checkpoint: Path, requests: list[Request], completions: list[Completion]
) -> None:
    """The output head on state `i` gives the logits from which seed and position choose token `i`."""
    head = load_file(checkpoint / "model.safetensors")["model.embed_tokens.weight"]
    for request, completion in zip(requests, completions, strict=True):
        agree = chosen(completion.states.float() @ head.T, request) == torch.tensor(completion.tokens)
        assert agree[0]
        assert agree.float().mean() > 0.9  # the states are rounded to bfloat16


def test_prefill__gives_the_generated_states_and_tokens(
    engine: TransformersEngine, requests: list[Request], completions: list[Completion]
) -> None:
    pairs = [(r.prompt, c.tokens) for r, c in zip(requests, completions, strict=True)]
    for request, completion, prefill in zip(requests, completions, engine.prefill(pairs), strict=True):
        assert prefill.logits.shape == (len(completion.tokens), engine.vocabulary)
        assert torch.allclose(prefill.states, completion.states, atol=1e-4)
        assert tuple(chosen(prefill.logits, request).tolist()) == completion.tokens


def test_prefill__matches_the_plain_model(engine: TransformersEngine) -> None:
    prompt, output = (1, 2, 3), (4, 5)
    plain = make_tiny_model(seed=1)
    with torch.no_grad():
        expected = plain(torch.tensor([[1, 2, 3, 4]])).logits[0, 2:]
    assert torch.allclose(engine.prefill([(prompt, output)])[0].logits, expected, atol=1e-4)


@pytest.mark.parametrize("output", [(), (4,), (EOS,)])
def test_prefill__no_token_and_one_token__top_03(engine: TransformersEngine, output: tuple[int, ...]) -> None:
    short, long = engine.prefill([((1, 2), output), ((1, 2, 3), (4, 5, 6))])
    assert short.states.shape == (len(output), 128)
    assert long.states.shape == (3, 128)


def test_generate__one_token_at_most__top_03(engine: TransformersEngine, requests: list[Request]) -> None:
    one = SamplingSettings(temperature=1.0, top_p=1.0, top_k=0, max_tokens=1)
    assert all(len(completion.tokens) == 1 for completion in engine.generate(requests, one))


def test_generate__greedy_is_the_argmax(engine: TransformersEngine, requests: list[Request]) -> None:
    greedy = SamplingSettings(temperature=0.0, top_p=1.0, top_k=0, max_tokens=6)
    completion = engine.generate(requests[:1], greedy)[0]
    prefill = engine.prefill([(requests[0].prompt, completion.tokens)])[0]
    assert tuple(prefill.logits.argmax(-1).tolist()) == completion.tokens


def test_generate__small_batches_change_nothing(
    checkpoint: Path, requests: list[Request], completions: list[Completion]
) -> None:
    small = TransformersEngine(max_rows=5)
    small.load(checkpoint)
    assert [c.tokens for c in small.generate(requests, SETTINGS)] == [c.tokens for c in completions]


@pytest.mark.parametrize("prompt", [(), (-1,), (20,)])
def test_generate__refuse_impossible_prompt(engine: TransformersEngine, prompt: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="token"):
        engine.generate([Request(prompt, 0)], SETTINGS)


def test_load__swaps_weights_in_place(checkpoint: Path, tmp_path: Path) -> None:
    other = write_tiny_policy(tmp_path / "b", seed=2)
    swapped, fresh = TransformersEngine(), TransformersEngine()
    swapped.load(checkpoint)
    swapped.load(other)
    fresh.load(other)
    pair = [((1, 2), (3, 4))]
    assert torch.equal(swapped.prefill(pair)[0].logits, fresh.prefill(pair)[0].logits)


def test_load__other_architecture(checkpoint: Path, tmp_path: Path) -> None:
    engine = TransformersEngine()
    engine.load(checkpoint)
    engine.load(write_tiny_policy(tmp_path / "wide", hidden=64))
    assert engine.prefill([((1,), (2,))])[0].states.shape == (1, 64)


def _drop_a_weight(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    weights.pop("model.norm.weight")
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def _reshape_a_weight(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    weights["model.norm.weight"] = torch.ones(7)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def _add_a_weight(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    save_file({**weights, "extra": torch.ones(1)}, folder / "model.safetensors", metadata={"format": "pt"})


def _truncate(folder: Path) -> None:
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:1000])


def _remove_weights(folder: Path) -> None:
    (folder / "model.safetensors").unlink()


def _remove_config(folder: Path) -> None:
    (folder / "config.json").unlink()


def _spoil_config(folder: Path) -> None:
    (folder / "config.json").write_text("[]")


SPOILERS = (
    _drop_a_weight,
    _reshape_a_weight,
    _add_a_weight,
    _truncate,
    _remove_weights,
    _remove_config,
    _spoil_config,
)


@pytest.mark.parametrize("spoil", SPOILERS)
@pytest.mark.parametrize("first", [True, False])
def test_load__refuse_bad_checkpoint_and_keep_the_old_weights(
    checkpoint: Path, tmp_path: Path, spoil: object, first: bool
) -> None:
    bad = write_tiny_policy(tmp_path / "bad", seed=3)
    assert callable(spoil)
    spoil(bad)
    engine = TransformersEngine()
    if not first:
        engine.load(checkpoint)
        before = engine.prefill([((1,), (2, 3))])[0].logits
    with pytest.raises(BadCheckpoint):
        engine.load(bad)
    if not first:
        assert torch.equal(engine.prefill([((1,), (2, 3))])[0].logits, before)


def test_load__remote_code_is_never_run(tmp_path: Path) -> None:
    bad = write_tiny_policy(tmp_path / "bad")
    config = json.loads((bad / "config.json").read_text())
    config |= {"model_type": "evil", "auto_map": {"AutoConfig": "evil.Evil", "AutoModelForCausalLM": "evil.Evil"}}
    (bad / "config.json").write_text(json.dumps(config))
    (bad / "evil.py").write_text("raise SystemExit('ran')")
    with pytest.raises(BadCheckpoint):
        TransformersEngine().load(bad)


def test_decode__inverts_encode_and_leaves_special_tokens_out(engine: TransformersEngine) -> None:
    text = "1 7+14;#31"
    assert engine.decode((*engine.encode(text), engine.eos)) == text
