"""Every engine: seeded generation in a batch equals the result of one prefill, whatever the batch.

vLLM's part runs where it is installed (`scripts/test-vllm`).
"""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from roles.inference.engine import Completion, Engine, Request, SamplingSettings
from roles.inference.errors import BadCheckpoint, SequenceTooLong
from roles.inference.sampling import draw
from roles.inference.transformers_engine import TransformersEngine
from tests.unit.roles.inference.tiny_policy import EOS, make_tiny_model, write_tiny_policy

SETTINGS = SamplingSettings(temperature=1.0, top_p=1.0, top_k=0, max_tokens=40)
KINDS = [
    "transformers",
    pytest.param(
        "vllm", marks=pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vLLM is not installed")
    ),
]
Build = Callable[[], Engine]


def build_engine(kind: str) -> Engine:
    if kind == "transformers":
        return TransformersEngine()
    from roles.inference.vllm_engine import VllmEngine, VllmSettings

    return VllmEngine(settings=VllmSettings(kv_cache_bytes=1 << 26))


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_policy(tmp_path_factory.mktemp("policy") / "a", seed=1)


@pytest.fixture(scope="module", params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def built(kind: str, checkpoint: Path) -> Engine:
    torch.set_num_threads(1)
    engine = build_engine(kind)
    engine.load(checkpoint)
    return engine


@pytest.fixture
def engine(built: Engine, checkpoint: Path) -> Iterator[Engine]:
    """The engine with the weights of `checkpoint`, whatever an earlier test loaded."""
    yield built
    built.load(checkpoint)


def make_requests(engine: Engine, count: int = 12) -> list[Request]:
    return [Request(engine.encode("17+14+11+6>"[: 1 + i % 9]), seed=2**62 + i) for i in range(count)]


def chosen(logits: torch.Tensor, request: Request, settings: SamplingSettings = SETTINGS) -> torch.Tensor:
    """The tokens that seeded sampling chooses from a completion's logits `[T, vocabulary]`."""
    positions = torch.arange(len(logits))
    return draw(logits, torch.full_like(positions, request.seed), positions, settings).tokens


@pytest.fixture(scope="module")
def requests(built: Engine) -> list[Request]:
    return make_requests(built)


@pytest.fixture(scope="module")
def completions(built: Engine, requests: list[Request]) -> list[Completion]:
    return built.generate(requests, SETTINGS)


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
    engine: Engine, requests: list[Request], completions: list[Completion]
) -> None:
    for request, together in zip(requests[:4], completions, strict=False):
        assert engine.generate([request], SETTINGS)[0].tokens == together.tokens


def test_generate__state_produced_its_token__top_01_top_04_top_07(
    engine: Engine, checkpoint: Path, requests: list[Request], completions: list[Completion]
) -> None:
    """The output head on state `i` gives the logits from which seed and position choose token `i`."""
    head = load_file(checkpoint / "model.safetensors")["model.embed_tokens.weight"]
    for request, completion in zip(requests, completions, strict=True):
        agree = chosen(completion.states.float() @ head.T, request) == torch.tensor(completion.tokens)
        assert agree[0]
        assert agree.float().mean() > 0.9  # the states are rounded to bfloat16


def test_prefill__gives_the_generated_states_and_tokens(
    engine: Engine, requests: list[Request], completions: list[Completion]
) -> None:
    pairs = [(r.prompt, c.tokens) for r, c in zip(requests, completions, strict=True)]
    for request, completion, prefill in zip(requests, completions, engine.prefill(pairs), strict=True):
        assert prefill.logits.shape == (len(completion.tokens), engine.vocabulary)
        assert torch.allclose(prefill.states, completion.states, atol=1e-4)
        assert tuple(chosen(prefill.logits, request).tolist()) == completion.tokens


def test_prefill__matches_the_plain_model(engine: Engine) -> None:
    prompt, output = (1, 2, 3), (4, 5)
    plain = make_tiny_model(seed=1)
    with torch.no_grad():
        expected = plain(torch.tensor([[1, 2, 3, 4]])).logits[0, 2:]
    assert torch.allclose(engine.prefill([(prompt, output)])[0].logits, expected, atol=1e-4)


@pytest.mark.parametrize("output", [(), (4,), (EOS,)])
def test_prefill__no_token_and_one_token__top_03(engine: Engine, output: tuple[int, ...]) -> None:
    short, long = engine.prefill([((1, 2), output), ((1, 2, 3), (4, 5, 6))])
    assert short.states.shape == (len(output), 128)
    assert long.states.shape == (3, 128)


def test_generate__one_token_at_most__top_03(engine: Engine, requests: list[Request]) -> None:
    one = SamplingSettings(temperature=1.0, top_p=1.0, top_k=0, max_tokens=1)
    assert all(len(completion.tokens) == 1 for completion in engine.generate(requests, one))


def test_generate__greedy_is_the_argmax(engine: Engine, requests: list[Request]) -> None:
    greedy = SamplingSettings(temperature=0.0, top_p=1.0, top_k=0, max_tokens=6)
    completion = engine.generate(requests[:1], greedy)[0]
    prefill = engine.prefill([(requests[0].prompt, completion.tokens)])[0]
    assert tuple(prefill.logits.argmax(-1).tolist()) == completion.tokens


@pytest.mark.parametrize("prompt", [(), (-1,), (20,)])
def test_generate__refuse_impossible_prompt(engine: Engine, prompt: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="token"):
        engine.generate([Request(prompt, 0)], SETTINGS)


def test_generate__refuse_longer_than_the_model(engine: Engine) -> None:
    with pytest.raises(SequenceTooLong, match="256 positions"):
        engine.generate([Request((1,) * 250, 0)], SETTINGS)


def test_prefill__refuse_longer_than_the_model(engine: Engine) -> None:
    with pytest.raises(SequenceTooLong, match="256 positions"):
        engine.prefill([((1,) * 200, (2,) * 80)])


@pytest.mark.parametrize(
    "settings",
    [
        SamplingSettings(temperature=0.6, top_p=1.0, top_k=0, max_tokens=20),
        SamplingSettings(temperature=1.0, top_p=0.8, top_k=8, max_tokens=20),
    ],
)
def test_generate__by_temperature_and_support(
    engine: Engine, requests: list[Request], settings: SamplingSettings
) -> None:
    said = engine.generate(requests[:4], settings)
    pairs = [(r.prompt, c.tokens) for r, c in zip(requests, said, strict=False)]
    for request, completion, prefill in zip(requests, said, engine.prefill(pairs), strict=False):
        assert tuple(chosen(prefill.logits, request, settings).tolist()) == completion.tokens
        scaled = (prefill.logits / settings.temperature).log_softmax(-1)
        expected = scaled.gather(1, torch.tensor(completion.tokens)[:, None])[:, 0]
        assert completion.logprobs == pytest.approx(expected.tolist(), abs=1e-3)


def test_load__swaps_weights_in_place(engine: Engine, tmp_path: Path) -> None:
    engine.load(write_tiny_policy(tmp_path / "b", seed=2))
    with torch.no_grad():
        expected = make_tiny_model(seed=2)(torch.tensor([[1, 2, 3]])).logits[0, 1:]
    assert torch.allclose(engine.prefill([((1, 2), (3, 4))])[0].logits, expected, atol=1e-4)


def test_load__keys_of_the_old_weights_are_forgotten(engine: Engine, checkpoint: Path, tmp_path: Path) -> None:
    """The prompt is long enough for an engine to cache its keys and values."""
    request = Request((3, 4, 5, 6) * 48, 5)
    settings = SamplingSettings(temperature=1.0, top_p=1.0, top_k=0, max_tokens=4)
    engine.load(write_tiny_policy(tmp_path / "b", seed=2))
    before = engine.generate([request], settings)[0]
    engine.load(checkpoint)
    engine.generate([request], settings)
    engine.load(tmp_path / "b")
    assert torch.allclose(engine.generate([request], settings)[0].states, before.states, atol=1e-3)


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


def _contradict_the_config(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "num_hidden_layers": "three"}))


def _spoil_a_number(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    weights["model.norm.weight"][3] = torch.nan
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def _change_the_tokenizer(folder: Path) -> None:
    file = folder / "tokenizer.json"
    file.write_text(file.read_text().replace('"7"', '"seven"'))


Spoil = Callable[[Path], None]
SPOILERS: dict[Spoil, str] = {
    _drop_a_weight: "model.norm.weight",
    _reshape_a_weight: "norm.weight|ormat|RuntimeError|mismatched",
    _add_a_weight: "extra",
    _spoil_a_number: "not finite",
    _truncate: "cut short",
    _remove_weights: "no safetensors",
    _remove_config: "not a checkpoint",
    _spoil_config: "not an object",
    _contradict_the_config: "not a checkpoint",
}


@pytest.mark.parametrize("spoil", [*SPOILERS, _change_the_tokenizer])
def test_load__refuse_bad_checkpoint_and_keep_the_old_weights(engine: Engine, tmp_path: Path, spoil: Spoil) -> None:
    bad = write_tiny_policy(tmp_path / "bad", seed=3)
    spoil(bad)
    before = engine.prefill([((1,), (2, 3))])[0].logits
    with pytest.raises(BadCheckpoint, match=SPOILERS.get(spoil, "another tokenizer")):
        engine.load(bad)
    assert torch.equal(engine.prefill([((1,), (2, 3))])[0].logits, before)


@pytest.mark.parametrize("spoil", SPOILERS)
def test_load__refuse_bad_checkpoint_at_first(kind: str, tmp_path: Path, spoil: Spoil) -> None:
    bad = write_tiny_policy(tmp_path / "bad", seed=3)
    spoil(bad)
    with pytest.raises(BadCheckpoint, match=SPOILERS[spoil]):
        build_engine(kind).load(bad)


def test_load__refuse_a_tokenizer_larger_than_the_model(kind: str, tmp_path: Path) -> None:
    bad = write_tiny_policy(tmp_path / "bad")
    file = bad / "tokenizer.json"
    file.write_text(file.read_text().replace('"<eos>": 19', '"<eos>": 19, "more": 20, "still": 21'))
    with pytest.raises(BadCheckpoint, match="tokens, the model only 20"):
        build_engine(kind).load(bad)


def test_load__refuse_a_chat_template_with_today_s_date(tmp_path: Path) -> None:
    dated = write_tiny_policy(tmp_path / "dated")
    (dated / "chat_template.jinja").write_text("{{ strftime_now('%d %b %Y') }}{{ messages[0]['content'] }}")
    TransformersEngine().load(dated)
    with pytest.raises(BadCheckpoint, match="put a fixed date into it"):
        TransformersEngine(chat=True).load(dated)


def test_load__remote_code_is_never_run(kind: str, tmp_path: Path) -> None:
    bad = write_tiny_policy(tmp_path / "bad")
    config = json.loads((bad / "config.json").read_text())
    config |= {"model_type": "evil", "auto_map": {"AutoConfig": "evil.Evil", "AutoModelForCausalLM": "evil.Evil"}}
    (bad / "config.json").write_text(json.dumps(config))
    (bad / "evil.py").write_text("raise SystemExit('ran')")
    with pytest.raises(BadCheckpoint):
        build_engine(kind).load(bad)


def test_decode__inverts_encode_and_leaves_special_tokens_out(engine: Engine) -> None:
    text = "1 7+14;#31"
    assert engine.decode((*engine.encode(text), engine.eos)) == text
