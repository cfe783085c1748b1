"""Engines that do not run the policy as asked. Each wraps an honest engine and delegates what it does not override."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import torch

from node.testnet.adversaries.weights import Alteration, write_altered
from roles.inference.engine import Completion, Engine, Pair, Prefill, Request, SamplingSettings

Change = Callable[[Completion, int], Completion]
"""Changes a completion, given the end token."""


class CheatingEngine:
    """The honest engine, unchanged. Subclasses override what they cheat at."""

    def __init__(self, real: Engine) -> None:
        self._real = real

    @property
    def eos(self) -> int:
        return self._real.eos

    @property
    def vocabulary(self) -> int:
        return self._real.vocabulary

    def load(self, checkpoint: Path) -> None:
        self._real.load(checkpoint)

    def generate(self, requests: Sequence[Request], settings: SamplingSettings) -> list[Completion]:
        return self._real.generate(requests, settings)

    def prefill(self, pairs: Sequence[Pair]) -> list[Prefill]:
        return self._real.prefill(pairs)

    def encode(self, text: str, *, is_said: bool = True) -> tuple[int, ...]:
        return self._real.encode(text, is_said=is_said)

    def decode(self, tokens: Sequence[int]) -> str:
        return self._real.decode(tokens)


class AlteredWeights(CheatingEngine):
    """Runs a model derived from the policy's: cheaper, or a different one."""

    def __init__(self, real: Engine, alteration: Alteration) -> None:
        super().__init__(real)
        self._alteration = alteration

    def load(self, checkpoint: Path) -> None:
        folder = Path(tempfile.mkdtemp(prefix="intellect-altered-"))
        try:
            self._real.load(write_altered(checkpoint, folder / checkpoint.name, self._alteration))
        finally:
            shutil.rmtree(folder, ignore_errors=True)


class FirstWeightsOnly(CheatingEngine):
    """Never loads new weights, and claims that it did."""

    def __init__(self, real: Engine) -> None:
        super().__init__(real)
        self._has_loaded = False

    def load(self, checkpoint: Path) -> None:
        if not self._has_loaded:
            self._real.load(checkpoint)
        self._has_loaded = True


class OtherSettings(CheatingEngine):
    """Samples with settings of its own: another temperature, greedily, or from fewer tokens."""

    def __init__(self, real: Engine, change: Callable[[SamplingSettings], SamplingSettings]) -> None:
        super().__init__(real)
        self._change = change

    def generate(self, requests: Sequence[Request], settings: SamplingSettings) -> list[Completion]:
        return self._real.generate(requests, self._change(settings))


class HiddenPrompt(CheatingEngine):
    """Inserts text of its own verbatim before every prompt, which is what a system prompt amounts to."""

    def __init__(self, real: Engine, words: str) -> None:
        super().__init__(real)
        self._words = words

    def generate(self, requests: Sequence[Request], settings: SamplingSettings) -> list[Completion]:
        said = self._real.encode(self._words, is_said=False)
        return self._real.generate([replace(item, prompt=said + item.prompt) for item in requests], settings)


class Hybrid(CheatingEngine):
    """A cheap model decodes, and the right one only prefills the result, so the proofs match the tokens."""

    def __init__(self, right: Engine, decoder: Engine) -> None:
        super().__init__(right)
        self._decoder = decoder

    def load(self, checkpoint: Path) -> None:
        super().load(checkpoint)
        self._decoder.load(checkpoint)

    def generate(self, requests: Sequence[Request], settings: SamplingSettings) -> list[Completion]:
        said = self._decoder.generate(requests, settings)
        prefills = self._real.prefill([(r.prompt, c.tokens) for r, c in zip(requests, said, strict=True)])
        return [replace(c, states=p.states) for c, p in zip(said, prefills, strict=True)]


class Altered(CheatingEngine):
    """Alters every honest completion afterwards."""

    def __init__(self, real: Engine, change: Change) -> None:
        super().__init__(real)
        self._change = change

    def generate(self, requests: Sequence[Request], settings: SamplingSettings) -> list[Completion]:
        return [self._change(item, self.eos) for item in self._real.generate(requests, settings)]


class Repeating(CheatingEngine):
    """Samples one completion per prompt and submits it for all."""

    def generate(self, requests: Sequence[Request], settings: SamplingSettings) -> list[Completion]:
        first: dict[tuple[int, ...], Request] = {}
        for request in requests:
            first.setdefault(request.prompt, request)
        said = dict(zip(first, self._real.generate(list(first.values()), settings), strict=True))
        return [said[request.prompt] for request in requests]


class Babbling(CheatingEngine):
    """Outputs arbitrary tokens with the right model's proofs of them: one prefill instead of decoding."""

    def generate(self, requests: Sequence[Request], settings: SamplingSettings) -> list[Completion]:
        tokens = [self._babble(request.seed, settings.max_tokens) for request in requests]
        prefills = self._real.prefill([(r.prompt, t) for r, t in zip(requests, tokens, strict=True)])
        return [
            Completion(said, "length", (-0.5,) * len(said), item.states)
            for said, item in zip(tokens, prefills, strict=True)
        ]

    def _babble(self, seed: int, length: int) -> tuple[int, ...]:
        draw = torch.Generator().manual_seed(seed)
        tokens = torch.randint(self.vocabulary - 1, (length,), generator=draw)
        return tuple((tokens + (tokens >= self.eos)).tolist())


class BrokenStates(CheatingEngine):
    """Genuine tokens, but the hidden states proven are NaN or infinite."""

    def __init__(self, real: Engine, value: float) -> None:
        super().__init__(real)
        self._value = value

    def generate(self, requests: Sequence[Request], settings: SamplingSettings) -> list[Completion]:
        said = self._real.generate(requests, settings)
        return [replace(item, states=torch.full_like(item.states, self._value)) for item in said]


def ended_early(completion: Completion, eos: int) -> Completion:
    """Truncate in the middle and put an end token there; the state that produced the replaced token is kept."""
    middle = len(completion.tokens) // 2
    return Completion(
        (*completion.tokens[:middle], eos), "eos", completion.logprobs[: middle + 1], completion.states[: middle + 1]
    )


def cut_off(completion: Completion, eos: int) -> Completion:
    """Truncate in the middle, and call it complete."""
    middle = max(1, len(completion.tokens) // 2)
    kept = completion.tokens[:middle]
    return Completion(kept, "length", completion.logprobs[:middle], completion.states[:middle])
