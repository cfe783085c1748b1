"""Size and speed of checkpoint deltas over real optimizer steps, beside other codecs and the bounds.

AdamW on a float32 master, published in bfloat16, as the trainer does it; the loss is next-token cross-entropy on Python's
own sources, gradients clipped at 0.1. Each row of the table is full bytes / delta bytes. The bounds are empirical entropies
of which elements change and by how much in ordered-integer space, without the cost of any table: blind, and given the base
weight's exponent. `ours` may pass the second one, since it codes a change of sign apart and has odds for each block.

    python -m benchmarks.delta [--quick] [--model FOLDER|FILE.gguf] [--batch N] [--tokens N] [--results FILE]
                               [--checkpoints FOLDER] [--scratch FOLDER] [--speeds]

The model is SmolLM2-135M where it is named (`intellect-node model import` makes a folder of it) or the packages that ship
and read it are installed, else the built-in policy on sums; `--quick`: the built-in policy and one learning rate. Rows
measured are kept in the results file, and not measured again: run it again to go on where it was stopped. Checkpoints
trained are kept in `--checkpoints`, if given: `--speeds` then measures only the speeds of kept rows again, in seconds.

Speeds are megabytes of the full checkpoint per second of wall time, best of three, and in brackets per second of CPU:
encode (to a file, synced), decode and verify (every shard's SHA-256, as relays and clients do it, not written), the same
and written to a folder and synced; and the floor of that: hash the same bytes, write them, sync.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import NamedTuple, Self

import torch

from benchmarks.command import count, existing_file, finish, model_folder, run
from benchmarks.delta.codecs import other_sizes, read_bits
from benchmarks.delta.training import POLICY, Pairs, find_model, load_training
from dht.encoding import ZERO_DIGEST
from roles.shardcast.delta import FolderBase, apply_delta, encode_delta
from roles.shardcast.manifest import build_manifest
from roles.shardcast.rebuild import rebuild
from roles.shardcast.shards import Layout

RATES = (3e-7, 1e-6, 3e-6, 1e-5)
STEPS = (1, 8)
MEGA = 1e6
TIMES = 3
SHARDS = 64


class Speed(NamedTuple):
    """Full-checkpoint megabytes per second of wall time and of CPU time."""

    wall: float
    cpu: float


class HashSink:
    """Verifies a shard's bytes, and keeps none."""

    def __init__(self, digest: str) -> None:
        self._digest, self._hash = digest, hashlib.sha256()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        return None

    def take(self, block: bytes | bytearray | memoryview) -> None:
        """Hash it."""
        self._hash.update(block)

    def commit(self) -> None:
        """Check the digest."""
        assert self._hash.hexdigest() == self._digest


@dataclass(frozen=True, slots=True)
class Row:
    """One measurement. `ratios`: full / delta by codec or bound."""

    lr: float
    steps: int
    changed: float
    ratios: dict[str, float]
    speeds: dict[str, Speed]


def compare(base: Path, new: Path, scratch: Path, *, lr: float, steps: int) -> Row:
    """All codecs on one pair of checkpoints."""
    full = (new / "model.safetensors").stat().st_size
    changed, sizes = other_sizes(read_bits(base), read_bits(new))
    speeds = measure_speeds(base, new, scratch)
    sizes["ours"] = (scratch / "delta").stat().st_size
    return Row(lr, steps, changed, {name: round(full / max(size, 1), 1) for name, size in sizes.items()}, speeds)


def measure_speeds(base: Path, new: Path, scratch: Path) -> dict[str, Speed]:
    """Speeds of our codec, which leaves its delta in `scratch`. The rebuilt
    checkpoint is compared with the original."""
    model = new / "model.safetensors"
    full, delta = model.stat().st_size, scratch / "delta"
    encode = timed(lambda: encode_delta(base, new, delta), full)
    manifest = build_manifest(new, run="ab" * 32, term=1, step=1, parent=ZERO_DIGEST, shard_size=-(-full // SHARDS))
    verify = timed(lambda: decode_and_verify(Layout(manifest), base, delta), full)
    with tempfile.TemporaryDirectory(dir=scratch) as into:
        folders = iter(range(TIMES))
        write = timed(lambda: apply_delta(base, delta, Path(into) / str(next(folders))), full)
        floor = timed(lambda: copy_and_hash(model, Path(into) / "copy"), full)
        assert (Path(into) / "0" / model.name).read_bytes() == model.read_bytes()
    return {"encode": encode, "verify": verify, "write": write, "floor": floor}


def decode_and_verify(layout: Layout, base: Path, delta: Path) -> None:
    """Rebuild every shard and compare it with its digest."""
    shards = layout.manifest.shards
    asyncio.run(rebuild(layout, lambda index: HashSink(shards[index]), base=FolderBase(base), chain=[[delta]]))


def timed(work: Callable[[], object], full: int) -> Speed:
    """The best of several runs."""
    return max(time_once(work, full) for _ in range(TIMES))


def time_once(work: Callable[[], object], full: int) -> Speed:
    """Run once and time it."""
    wall, cpu = time.perf_counter(), time.process_time()
    work()
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    return Speed(round(full / MEGA / wall, 1), round(full / MEGA / cpu, 1))


def copy_and_hash(source: Path, into: Path) -> None:
    """The minimum work of any decoder that writes its output."""
    digest = hashlib.sha256()
    with source.open("rb") as file, into.open("wb") as out:
        while block := file.read(2**23):
            digest.update(block)
            out.write(block)
        out.flush()
        os.fsync(out.fileno())


def show(row: Row) -> str:
    """One line of the table."""
    ratios = "".join(f"{ratio:>11.1f}" for ratio in row.ratios.values())
    speeds = "".join(f"{f'{wall:.0f} ({cpu:.0f})':>13}" for wall, cpu in row.speeds.values())
    return f"{row.lr:>7.0e}{row.steps:>6}{row.changed:>9.2%}{ratios}{speeds}"


def load_rows(results: Path, kind: str) -> dict[tuple[float, int], Row]:
    """Stored rows of the same model and batch, by learning rate and steps; the newest of each."""
    kept = [json.loads(line) for line in results.read_text().splitlines()] if results.exists() else []
    rows = [entry["row"] for entry in kept if entry["kind"] == kind and "speeds" in entry["row"]]
    return {(row["lr"], row["steps"]): Row(**row) for row in rows}


def model_of(text: str) -> Path:
    """The argument --model: a model folder or a GGUF file."""
    return existing_file(text) if text.endswith(".gguf") else model_folder(text)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.delta", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="the built-in policy and one learning rate: seconds")
    parser.add_argument("--model", type=model_of, help="a checkpoint folder or a GGUF file")
    parser.add_argument("--batch", type=count, default=2)
    parser.add_argument("--tokens", type=count, default=96)
    parser.add_argument("--results", type=Path, default=Path(tempfile.gettempdir()) / "intellect-node-delta.jsonl")
    parser.add_argument("--checkpoints", type=Path, help="keep what was trained here (nine checkpoints)")
    parser.add_argument(
        "--scratch", type=Path, help="where deltas and copies are written; default the temporary folder"
    )
    parser.add_argument("--speeds", action="store_true", help="measure the speeds of rows that are kept again")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table; the last line is JSON."""
    args = parse(arguments)
    torch.manual_seed(0)
    torch.set_num_threads(os.cpu_count() or 1)
    model = POLICY if args.quick and not args.model else find_model(args.model)
    kind = f"{'built-in policy' if model == POLICY else model.stem}, batches of {args.batch} x {args.tokens}"
    rows = {} if args.quick else load_rows(args.results, kind)
    titles = ("raw+zstd", "gaps+zstd", "xor+zstd", "blind bnd", "given bnd", "ours")
    print(f"{kind}: full / delta, and MB/s of wall time (of CPU time), {os.cpu_count()} cores")
    print(
        "     lr steps  changed"
        + "".join(f"{t:>11}" for t in titles)
        + "       encode       verify   and write        floor"
    )
    with tempfile.TemporaryDirectory(dir=args.scratch) as temporary:
        scratch = Path(temporary)
        load = partial(load_training, model, batch=args.batch, tokens=args.tokens)
        pairs = Pairs(args.checkpoints or scratch / "checkpoints", load)
        for lr in RATES[1:2] if args.quick else RATES:
            for steps in STEPS:
                row, is_new = rows.get((lr, steps)), False
                if row is None or args.speeds:
                    base, later = pairs.find(lr, STEPS)
                    row = (
                        compare(base, later[steps], scratch, lr=lr, steps=steps)
                        if row is None
                        else replace(row, speeds=measure_speeds(base, later[steps], scratch))
                    )
                    rows[lr, steps], is_new = row, True
                print(show(row), flush=True)
                if is_new and not args.quick:
                    with args.results.open("a") as file:
                        file.write(json.dumps({"kind": kind, "row": asdict(row)}) + "\n")
    finish("delta", model=kind, rows=[asdict(row) for row in rows.values()])
    return 0


if __name__ == "__main__":
    run(main)
