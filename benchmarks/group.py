"""One group of completions on a real model; shared by the benchmarks of proofs and of verification."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from roles.inference.transformers_engine import TransformersEngine


class EndlessEngine(TransformersEngine):
    """Never emits the end token, so that every completion has all its tokens."""

    @property
    def eos(self) -> int:
        return -1


@dataclass(frozen=True, slots=True)
class Spent:
    """Duration of one call in seconds: by the clock, and of CPU in all threads, which other processes disturb less."""

    wall: float
    cpu: float

    def share_of(self, other: Spent) -> float:
        """This CPU time as a percentage of another's."""
        return 100 * self.cpu / other.cpu

    def __add__(self, other: Spent) -> Spent:
        return Spent(self.wall + other.wall, self.cpu + other.cpu)


def clocked(call: Callable[[], object], *, rounds: int = 1) -> Spent:
    """The fastest of several rounds, by each clock."""
    spent = []
    for _ in range(rounds):
        wall, cpu = time.perf_counter(), time.process_time()
        call()
        spent.append((time.perf_counter() - wall, time.process_time() - cpu))
    return Spent(min(wall for wall, _ in spent), min(cpu for _, cpu in spent))


def load_engine(model: Path, *, threads: int) -> TransformersEngine:
    """The model of a folder in its own dtype, with its chat template for prompts if it has one."""
    torch.set_num_threads(threads)
    engine = EndlessEngine(dtype=getattr(torch, dtype_of(model)), chat=(model / "chat_template.jinja").is_file())
    engine.load(model)
    return engine


def dtype_of(model: Path) -> str:
    """The spec's value for a model folder."""
    config = json.loads((model / "config.json").read_text())
    return str(config.get("dtype") or config.get("torch_dtype") or "float32")
