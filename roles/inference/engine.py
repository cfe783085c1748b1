"""The port to whatever runs the policy. Adapters: `transformers_engine` (any device that PyTorch
supports), `vllm_engine`.

Knows nothing of tasks, files or peers. Blocking: call it from a worker thread, one call at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

import torch

from roles.inference.sampling import SamplingSettings

__all__ = ["Completion", "Engine", "Finish", "Pair", "Prefill", "Request", "SamplingSettings"]

Finish = Literal["eos", "length"]
Pair = tuple[tuple[int, ...], tuple[int, ...]]
"""A prompt and its output, as token ids."""


@dataclass(frozen=True, slots=True)
class Request:
    """A request for one completion: prompt token ids (at least one) and its sampling seed (63 bits)."""

    prompt: tuple[int, ...]
    seed: int


@dataclass(frozen=True, slots=True, eq=False)
class Completion:
    """The policy's answer to one `Request`.

    `tokens` includes the end-of-sequence token when `finish` is "eos". `states` `[len(tokens), hidden]` in the engine's
    dtype: row `i` is the last hidden state, after the final norm, that produced token `i`.  # TOP-04
    `logprobs` are under `softmax(logits / T)`, over the whole vocabulary.
    """

    tokens: tuple[int, ...]
    finish: Finish
    logprobs: tuple[float, ...]
    states: torch.Tensor


@dataclass(frozen=True, slots=True, eq=False)
class Prefill:
    """The states that produced each output token, `[T, hidden]` in the engine's dtype, on its device.

    Row 0 is position `len(prompt) - 1`, so the first token is covered.  # TOP-07
    `head` computes float32 logits `[n, vocabulary]` of any states `[n, hidden]`, with the weights loaded at that time.
    The logits of a whole group would take gigabytes, so callers that need many compute them in parts.
    """

    states: torch.Tensor
    head: Callable[[torch.Tensor], torch.Tensor]

    @property
    def logits(self) -> torch.Tensor:
        """All logits at once: float32 `[T, vocabulary]`, on the CPU."""
        return self.head(self.states).cpu()


class Engine(Protocol):
    """Runs one checkpoint at a time."""

    @property
    def eos(self) -> int:
        """The token that ends a completion."""
        ...

    @property
    def vocabulary(self) -> int:
        """Number of token ids, the last dimension of the logits."""
        ...

    def load(self, checkpoint: Path) -> None:
        """Load the weights of a checkpoint folder; in place when the architecture is the same.

        Raises `BadCheckpoint` when this engine cannot run the folder's contents; the old weights are then kept.
        """
        ...

    def generate(self, requests: Sequence[Request], settings: SamplingSettings) -> list[Completion]:
        """Complete all requests in one batch, in order."""
        ...

    def prefill(self, pairs: Sequence[Pair]) -> list[Prefill]:
        """One forward pass over (prompt, output) pairs, in order."""
        ...

    def encode(self, text: str, *, is_said: bool = True) -> tuple[int, ...]:
        """Token ids of a text, without special tokens. With `is_said` the text is put into the chat template of a run
        that has one; otherwise (a tool's answer inside a completion) it is encoded as it is."""
        ...

    def decode(self, tokens: Sequence[int]) -> str:
        """Text of token ids, without special tokens."""
        ...
