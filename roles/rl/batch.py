"""From accepted rollout groups to the packed tensors of an optimizer step.

Knows tokens, rewards and shapes; knows nothing of models, peers or files.
"""

import heapq
import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, zip_longest
from typing import NamedTuple

import torch
from torch import Tensor

from roles.rl.advantages import compute_advantages
from roles.turns.spans import Turns, own_count, own_spans


@dataclass(frozen=True, slots=True)
class TrainingGroup:
    """All completions of one prompt by one worker. Raises ValueError when the parts do not fit together.

    A completion holds every generated token, the end-of-sequence token included where it was sampled. `turns` says of each
    completion which of its tokens a tool put there (`roles.turns.spans`), and is empty in a run without one.
    """

    prompt: tuple[int, ...]
    completions: tuple[tuple[int, ...], ...]
    rewards: tuple[float, ...]
    policy_step: int  # the checkpoint that generated it
    submission: str  # digest of the submission it came in
    turns: tuple[Turns, ...] = ()

    def __post_init__(self) -> None:
        """Refuse a group that could not have been generated."""
        if not self.prompt or not self.completions or not all(self.completions):
            raise ValueError("a group needs a prompt and completions of at least one token")
        if len(self.completions) != len(self.rewards):
            raise ValueError(f"{len(self.completions)} completions but {len(self.rewards)} rewards")
        if self.turns and list(map(sum, self.turns)) != list(map(len, self.completions)):
            raise ValueError("turns that do not add up to their completions")

    @property
    def learned(self) -> int:
        """Tokens that the policy said itself."""
        return sum(
            own_count(turns, len(completion))
            for completion, turns in zip_longest(self.completions, self.turns, fillvalue=())
        )


class Row(NamedTuple):
    """One completion to learn from."""

    prompt: tuple[int, ...]
    completion: tuple[int, ...]
    advantage: float
    turns: Turns = ()
    policy_step: int = 0  # the checkpoint that generated it

    @property
    def length(self) -> int:
        """Tokens that a forward pass sees."""
        return len(self.prompt) + len(self.completion)

    @property
    def learned(self) -> int:
        """Tokens that the loss is over."""
        return own_count(self.turns, len(self.completion))


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """What one forward pass takes: T tokens of S rows, one behind the other, of which N are learned from. No token is padding.

    `bounds` are the S + 1 places where rows begin and end. Each row's positions count from 0, and it attends to itself alone.
    """

    input_ids: Tensor  # (1, T) int64
    position_ids: Tensor  # (1, T) int64
    bounds: tuple[int, ...]
    places: Tensor  # (N,) int64: the position that predicts each learned token
    targets: Tensor  # (N,) int64: the learned tokens
    advantages: Tensor  # (N,) float32
    sequence: Tensor  # (N,) int64: which row
    mask: Tensor  # (N,) float32: 1.0, or 0.0 throughout where a rank has no row of its own

    @property
    def sequences(self) -> int:
        """Rows."""
        return len(self.bounds) - 1


def is_usable(group: TrainingGroup) -> bool:
    """Whether the group's rewards differ, so that it teaches something; only such groups fill a batch."""
    return any(compute_advantages(group.rewards))


def select_rows(groups: Sequence[TrainingGroup]) -> list[Row]:
    """Return the completions that teach something: groups whose rewards all agree are dropped (online filter)."""
    return [
        Row(group.prompt, completion, advantage, turns, group.policy_step)
        for group in groups
        if is_usable(group)
        for completion, advantage, turns in zip(
            group.completions,
            compute_advantages(group.rewards),
            group.turns or ((),) * len(group.completions),
            strict=True,
        )
    ]


def split_minibatches(rows: Sequence[Row], *, parts: int, seed: int) -> list[list[Row]]:
    """Shuffle, then split into at most `parts` mini-batches whose sizes differ by at most one row.

    The order is a function of `seed` alone, so a restarted trainer repeats it.
    """
    shuffled = random.Random(seed).sample(rows, len(rows))
    return [part for part in (shuffled[index::parts] for index in range(parts)) if part]


def pack_rows(rows: Sequence[Row], *, capacity: int, multiple: int = 1) -> list[list[Row]]:
    """Spread rows over bins of at most `capacity` tokens, or of the longest row's where that is more.

    The number of bins is a multiple of `multiple` (ranks), their loads are level (longest row first, onto the emptiest bin),
    and some are empty where there are fewer rows. Equal rows give equal bins.
    """
    ordered = sorted(rows, key=lambda row: (-row.length, row))
    most = max(capacity, ordered[0].length)  # the longest row must have a bin
    wanted = min(len(ordered), -(-sum(row.length for row in rows) // most))
    count = -(-max(1, wanted) // multiple) * multiple
    while True:
        bins, loads = _spread(ordered, count)
        if count >= len(ordered) or max(loads) <= most:
            return bins
        count += multiple


def part_rows(rows: Sequence[Row], *, multiple: int = 1) -> list[list[Row]]:
    """Each row in a bin of its own, longest first, for a model whose rows cannot be packed; some bins are empty, so that
    their number is a multiple of `multiple` (ranks)."""
    bins = [[row] for row in sorted(rows, key=lambda row: (-row.length, row))]
    return bins + [[] for _ in range(-len(bins) % multiple)]


def _spread(ordered: Sequence[Row], count: int) -> tuple[list[list[Row]], list[int]]:
    bins: list[list[Row]] = [[] for _ in range(count)]
    heap = [(0, number) for number in range(count)]
    for row in ordered:
        load, number = heapq.heappop(heap)
        bins[number].append(row)
        heapq.heappush(heap, (load + row.length, number))
    return bins, [load for load, _ in heap]


def build_batch(rows: Sequence[Row], device: torch.device | str = "cpu") -> MicroBatch:
    """Build the tensors of one forward pass. `rows` is not empty."""
    bounds = tuple(accumulate((row.length for row in rows), initial=0))
    places: list[int] = []
    sequence: list[int] = []
    for number, (row, start) in enumerate(zip(rows, bounds, strict=False)):
        first = start + len(row.prompt)
        for begin, end in own_spans(row.turns, len(row.completion)):
            places += range(first + begin - 1, first + end - 1)  # a token is predicted by the one before it
            sequence += [number] * (end - begin)
    tokens = torch.tensor([token for row in rows for token in (*row.prompt, *row.completion)])
    positions = torch.cat([torch.arange(row.length) for row in rows])
    where, which = torch.tensor(places, dtype=torch.int64), torch.tensor(sequence, dtype=torch.int64)
    return MicroBatch(
        input_ids=tokens.unsqueeze(0).to(device),
        position_ids=positions.unsqueeze(0).to(device),
        bounds=bounds,
        places=where.to(device),
        targets=tokens[where + 1].to(device),
        advantages=torch.tensor([row.advantage for row in rows])[which].to(device),
        sequence=which.to(device),
        mask=torch.ones(len(places)).to(device),
    )


def count_tokens(rows: Sequence[Row]) -> int:
    """Count the completion tokens that the policy said: the normaliser of the loss."""
    return sum(row.learned for row in rows)


def count_all_tokens(groups: Sequence[TrainingGroup]) -> int:
    """Count the completion tokens of whole groups, whether they teach something or not."""
    return sum(group.learned for group in groups)
