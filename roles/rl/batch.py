"""Turns accepted rollout groups into the packed tensors of an optimizer step.

Knows tokens, rewards and shapes, but nothing of models, peers or files.
"""

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import NamedTuple

import torch
from torch import Tensor

from roles.rl.advantages import compute_advantages
from roles.rl.strands import lay_out
from roles.turns.spans import Turns, own_count, own_spans


@dataclass(frozen=True, slots=True)
class TrainingGroup:
    """All completions of one prompt by one worker. Raises ValueError when the parts do not fit together.

    A completion holds every generated token, including the end-of-sequence token where it was sampled. `turns`
    marks the tokens of each completion that a tool inserted (`roles.turns.spans`), and is empty in a run without a
    tool. `reported` are the worker's own log-probabilities, empty where it gave none; they are used for an alarm
    only, never for training.
    """

    prompt: tuple[int, ...]
    completions: tuple[tuple[int, ...], ...]
    rewards: tuple[float, ...]
    policy_step: int  # the checkpoint that generated it
    submission: str  # digest of the submission it came in
    turns: tuple[Turns, ...] = ()
    reported: tuple[tuple[float, ...], ...] = ()

    def __post_init__(self) -> None:
        """Refuse a group that could not have been generated."""
        if not self.prompt or not self.completions or not all(self.completions):
            raise ValueError("a group needs a prompt and completions of at least one token")
        if len(self.completions) != len(self.rewards):
            raise ValueError(f"{len(self.completions)} completions but {len(self.rewards)} rewards")
        if self.turns and list(map(sum, self.turns)) != list(map(len, self.completions)):
            raise ValueError("turns that do not add up to their completions")
        if self.reported and list(map(len, self.reported)) != list(map(len, self.completions)):
            raise ValueError("log-probabilities of other completions")

    @property
    def learned(self) -> int:
        """Number of tokens that the policy itself generated."""
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
    reported: tuple[float, ...] = ()  # the worker's own log-probabilities, for an alarm alone

    @property
    def length(self) -> int:
        """Number of tokens in a forward pass."""
        return len(self.prompt) + len(self.completion)

    @property
    def learned(self) -> int:
        """Number of tokens in the loss."""
        return own_count(self.turns, len(self.completion))


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """The input of one forward pass: T tokens of S strands, one after another, of which N are learned
    from. There is no padding.

    `bounds` are the S + 1 boundaries of the strands. A strand is a whole row, a prompt shared by several rows, or the
    completion of one of those; `stems` names the strand that each continues. Positions count from the row's start, and
    a token attends only to tokens of its own row.
    """

    input_ids: Tensor  # (1, T) int64
    position_ids: Tensor  # (1, T) int64
    bounds: tuple[int, ...]
    stems: tuple[int | None, ...]
    sequences: int  # rows
    places: Tensor  # (N,) int64: the position that predicts each learned token; rows that share a prompt share its last
    targets: Tensor  # (N,) int64: the learned tokens
    advantages: Tensor  # (N,) float32
    sequence: Tensor  # (N,) int64: which row
    mask: Tensor  # (N,) float32: 1.0, or 0.0 throughout where a rank has no row of its own


def is_usable(group: TrainingGroup) -> bool:
    """Whether the group's rewards differ, so that it teaches something. Only such groups fill a batch."""
    return any(compute_advantages(group.rewards))


def select_rows(groups: Sequence[TrainingGroup]) -> list[Row]:
    """Return the completions to learn from: groups whose rewards all agree are dropped (online filter)."""
    return [
        Row(group.prompt, completion, advantage, turns, group.policy_step, reported)
        for group in groups
        if is_usable(group)
        for completion, advantage, turns, reported in zip(
            group.completions,
            compute_advantages(group.rewards),
            group.turns or ((),) * len(group.completions),
            group.reported or ((),) * len(group.completions),
            strict=True,
        )
    ]


def split_minibatches(rows: Sequence[Row], *, parts: int, seed: int) -> list[list[Row]]:
    """Shuffle, then split into at most `parts` mini-batches whose sizes differ by at most one row.

    The order is a function of `seed` alone, so a restarted trainer repeats it.
    """
    shuffled = random.Random(seed).sample(rows, len(rows))
    return [part for part in (shuffled[index::parts] for index in range(parts)) if part]


def build_batch(rows: Sequence[Row], device: torch.device | str = "cpu", *, shares: bool = True) -> MicroBatch:
    """Build the tensors of one forward pass. `rows` is not empty. Neighbours with one prompt share it if `shares`."""
    layout = lay_out([(row.prompt, row.completion) for row in rows], shares=shares)
    places: list[int] = []
    targets: list[int] = []
    sequence: list[int] = []
    for number, (row, place) in enumerate(zip(rows, layout.rows, strict=True)):
        predictors = (place.before, *range(place.first, place.first + len(row.completion) - 1))
        for begin, end in own_spans(row.turns, len(row.completion)):
            places += predictors[begin:end]  # a token is predicted by the one before it
            targets += row.completion[begin:end]
            sequence += [number] * (end - begin)
    which = torch.tensor(sequence, dtype=torch.int64)
    return MicroBatch(
        input_ids=torch.tensor(layout.tokens).unsqueeze(0).to(device),
        position_ids=torch.tensor(layout.positions).unsqueeze(0).to(device),
        bounds=layout.bounds,
        stems=layout.stems,
        sequences=len(rows),
        places=torch.tensor(places, dtype=torch.int64).to(device),
        targets=torch.tensor(targets, dtype=torch.int64).to(device),
        advantages=torch.tensor([row.advantage for row in rows])[which].to(device),
        sequence=which.to(device),
        mask=torch.ones(len(places)).to(device),
    )


def count_tokens(rows: Sequence[Row]) -> int:
    """Count the completion tokens that the policy generated: the normaliser of the loss."""
    return sum(row.learned for row in rows)


def count_all_tokens(groups: Sequence[TrainingGroup]) -> int:
    """Count the completion tokens of whole groups, whether or not they teach something."""
    return sum(group.learned for group in groups)


def mean_reward(groups: Sequence[TrainingGroup]) -> float:
    """Mean over all completions: rewards `[0, 1]` and `[1, 1]` -> 0.75; 0 without groups."""
    rewards = [reward for group in groups for reward in group.rewards]
    return math.fsum(rewards) / len(rewards) if rewards else 0.0
