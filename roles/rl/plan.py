"""How a mini-batch is divided into this rank's forward passes, and what is known of each before the first update."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from roles.rl.batch import MicroBatch, Row, build_batch
from roles.rl.objectives import Tokens
from roles.rl.packing import pack_rows, part_rows
from roles.rl.ranks import Ranks
from roles.rl.settings import GrpoSettings


@dataclass(frozen=True, slots=True)
class Pass:
    """One forward pass and the log-probabilities it is compared with, (N,) each."""

    rows: tuple[Row, ...]
    batch: MicroBatch
    old: Tensor | None = None
    behaviour: Tensor | None = None
    reference: Tensor | None = None

    def tokens(self, new: Tensor) -> Tokens:
        """The tokens as a loss takes them. Raises ValueError unless `old` has been scored."""
        if self.old is None:
            raise ValueError("a pass is trained on before it was scored")
        return Tokens(
            new=new,
            old=self.old,
            behaviour=self.behaviour,
            advantages=self.batch.advantages,
            sequence=self.batch.sequence,
            sequences=self.batch.sequences,
            mask=self.batch.mask,
        )


def plan_passes(rows: Sequence[Row], *, ranks: Ranks, settings: GrpoSettings, packs: bool, shares: bool) -> list[Pass]:
    """Divide a mini-batch into this rank's passes. Every rank gets the same number, as FSDP's collectives require.

    A rank with too few rows runs a pass with an empty mask. (The reference repeats a real one, which biases the mean.)
    """
    if packs:
        capacity = settings.micro_tokens or settings.micro_batch * max(row.length for row in rows)
        bins = pack_rows(rows, capacity=capacity, multiple=ranks.world, shares=shares)
    else:
        bins = part_rows(rows, multiple=ranks.world)
    spare = min(rows, key=_length)
    return [_pass(own, spare, ranks.device, shares=shares) for own in bins[ranks.rank :: ranks.world]]


def _length(row: Row) -> int:
    return row.length


def _pass(own: Sequence[Row], spare: Row, device: torch.device, *, shares: bool) -> Pass:
    batch = build_batch(own or [spare], device, shares=shares)
    if not own:
        batch = replace(batch, mask=torch.zeros_like(batch.mask))
    return Pass(tuple(own or [spare]), batch)
