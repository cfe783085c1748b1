"""The set-up in which cheats are tried: a model, real prompts, groups of completions, and the validator's engine."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import torch

from dht.encoding import digest
from node.testnet.adversaries.engines import CheatingEngine
from roles.assignment import assigned_groups
from roles.inference.engine import Engine, Pair, Prefill, Request, SamplingSettings
from roles.inference.sampling import token_margins
from roles.inference.transformers_engine import TransformersEngine
from roles.tasks import load_task

DATA_SETS = ("leg_counting", "chain_sum", "family_relationships", "letter_counting", "word_sorting")
SUFFIX = "\nThink step by step, and explain each step."
PROBLEMS = 200
"""Number taken from each data set."""


@dataclass(frozen=True, slots=True)
class Assigned:
    """One group: its number, and one request per completion."""

    number: int
    requests: tuple[Request, ...]


class Remembering(CheatingEngine):
    """The validator's engine, with the last prefill cached, so that several claims
    about the same tokens cost one pass."""

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine)
        self._pairs: object = None
        self._prefills: list[Prefill] = []

    def prefill(self, pairs: Sequence[Pair]) -> list[Prefill]:
        """Like the engine's `prefill`."""
        if list(pairs) != self._pairs:
            self._pairs, self._prefills = list(pairs), super().prefill(pairs)
        return self._prefills


@dataclass(frozen=True)
class Bench:
    """A model set up as in a run, with the dtype and chat template from its folder."""

    model: Path
    group_size: int = 8
    max_tokens: int = 128
    temperature: float = 1.0

    @cached_property
    def chat(self) -> bool:
        """Whether prompts use a chat template."""
        return (self.model / "chat_template.jinja").is_file()

    @cached_property
    def dtype(self) -> torch.dtype:
        """The dtype of the model's weights."""
        config = json.loads((self.model / "config.json").read_text())
        return torch.bfloat16 if config.get("dtype", config.get("torch_dtype")) == "bfloat16" else torch.float32

    @cached_property
    def settings(self) -> SamplingSettings:
        """The run's sampling."""
        return SamplingSettings(temperature=self.temperature, top_p=1.0, top_k=0, max_tokens=self.max_tokens)

    @cached_property
    def prompts(self) -> tuple[str, ...]:
        """Real questions for a chat model, sums for the built-in policy."""
        if not self.chat:
            task = load_task("arithmetic", {})
            return tuple(task.prompt(number) for number in range(min(task.size, 1000)))
        asked = [
            load_task("reasoning-gym", {"dataset": name, "seed": 7, "size": PROBLEMS, "suffix": SUFFIX})
            for name in DATA_SETS
        ]
        return tuple(task.prompt(number) for number in range(PROBLEMS) for task in asked)

    @cached_property
    def validator(self) -> Remembering:
        """The judging engine: the spec's kernel, one packed prefill."""
        engine = self.new_engine()
        engine.load(self.model)
        return Remembering(engine)

    def new_engine(self, *, attention: str = "sdpa", rows: int = 64) -> Engine:
        """An honest engine, without weights yet."""
        return TransformersEngine(dtype=self.dtype, attention=attention, max_rows=rows, chat=self.chat)

    def new_vllm(self) -> Engine:
        """The same on vLLM, where it is installed."""
        from roles.inference.vllm_engine import VllmEngine

        return VllmEngine(dtype=self.dtype, chat=self.chat)

    def group(self, number: int) -> Assigned:
        """The requests of a group, drawn as in a run."""
        drawn = assigned_groups(
            digest("attacks/1", number), problems=len(self.prompts), groups=1, group_size=self.group_size
        )[0]
        prompt = self.validator.encode(self.prompts[drawn.problem])
        return Assigned(number, tuple(Request(prompt, seed) for seed in drawn.seeds))

    @cached_property
    def tag(self) -> str:
        """Identifies comparable observations: weights, shape of groups, and the sampling check."""
        shape = (self.group_size, self.max_tokens, str(self.temperature), str(self.dtype))
        weights = hashlib.sha256()
        for path in sorted(self.model.glob("*.safetensors")):
            weights.update(path.read_bytes())
        return digest("attacks/1", weights.hexdigest(), _sampling_mark(), *map(str, shape), *self.prompts[:10])[:12]


def _sampling_mark() -> str:
    """Margins of a fixed example, which change if the sampling scheme changes."""
    draw = np.random.default_rng(1)
    logits = draw.normal(size=(8, 1000)).astype(np.float32) * 3
    tokens = torch.arange(8)
    seeds = torch.full_like(tokens, 12345)
    found = token_margins(torch.from_numpy(logits), tokens, seeds, tokens, SamplingSettings(1.0, 1.0, 0, 8)).tolist()
    return ",".join(f"{value:.3f}" for value in found)
