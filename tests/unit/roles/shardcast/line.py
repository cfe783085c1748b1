"""A line of checkpoints a small step apart, the deltas between them, and relays that pull and rebuild."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from dht.envelope import Envelope
from roles.shardcast.delta import encode_delta
from roles.shardcast.manifest import build_delta, build_manifest, manifest_digest, seal_manifest
from tests.unit.roles.shardcast.network import RUN, TRAINER, ZERO, Network

SHARD = 65_536
ELEMENTS = 200_000


@dataclass
class Line:
    """Checkpoints one small step after another, each with its signed manifest and a delta from the one before."""

    root: Path
    folders: list[Path] = field(default_factory=list)
    rows: list[Envelope] = field(default_factory=list)

    def digest(self, step: int) -> str:
        return manifest_digest(self.rows[step])

    def delta(self, step: int, *, base: int | None = None, file: bytes | None = None) -> tuple[Envelope, Path]:
        """The row and the folder of a delta to a step, by default from the one before; `file` replaces its content."""
        base = step - 1 if base is None else base
        folder = self.root / f"delta-{base}-{step}"
        folder.mkdir(exist_ok=True)
        encode_delta(self.folders[base], self.folders[step], folder / "delta")
        if file is not None:
            (folder / "delta").write_bytes(file)
        row = build_delta(
            folder / "delta",
            run=RUN,
            term=1,
            step=step,
            target=self.digest(step),
            base=self.digest(base),
            shard_size=1024,
        )
        return seal_manifest(TRAINER, row), folder


def make_line(root: Path, *, steps: int) -> Line:
    line, draw = Line(root), torch.Generator().manual_seed(3)
    weights = torch.randn(ELEMENTS, generator=draw) * 0.05
    parent = ZERO
    for step in range(steps):
        folder = root / f"checkpoint-{step}"
        folder.mkdir(parents=True)
        save_file({"half": weights.to(torch.bfloat16)}, folder / "model.safetensors", metadata={"format": "pt"})
        (folder / "config.json").write_text("{}")
        manifest = build_manifest(folder, run=RUN, term=1, step=step, parent=parent, shard_size=SHARD)
        line.folders.append(folder)
        line.rows.append(seal_manifest(TRAINER, manifest))
        parent = line.digest(step)
        weights = weights + 1e-6 * torch.randn(ELEMENTS, generator=draw)
    return line


@asynccontextmanager
async def pulling(network: Network) -> AsyncIterator[None]:
    async with asyncio.TaskGroup() as group:
        tasks = network.start(group)
        yield
        for task in tasks:
            task.cancel()


async def publish(network: Network, line: Line, steps: Sequence[int], *, whole: bool = False) -> None:
    """Publish the first checkpoint whole and the others as deltas, unless `whole`."""
    origin = network.client(TRAINER).origin
    for step in steps:
        delta = None if step == steps[0] else line.delta(step)
        await origin.publish(line.rows[step], line.folders[step], delta=delta, whole=whole)


def is_same(fetched: Path, source: Path) -> bool:
    return all((fetched / path.name).read_bytes() == path.read_bytes() for path in source.iterdir())


def fetches(log: Sequence[Mapping[str, Any]]) -> list[tuple[bool, bool]]:
    """For each fetch, whether shards were fetched, and whether deltas were."""
    return [(bool(e["full"]), bool(e["delta"])) for e in log if e["event"] == "checkpoint.fetched"]
