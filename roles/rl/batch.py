"""From accepted rollout groups to the padded tensors of an optimizer step.

Knows tokens, rewards and shapes; knows nothing of models, peers or files.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import NamedTuple

import torch
from torch import Tensor

from roles.rl.advantages import compute_advantages
from roles.turns.spans import Turns, own_count, own_spans

PAD = 0  # a padding position is masked everywhere, so any valid token id does


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

    @property
    def learned(self) -> int:
        """Tokens that the loss is over."""
        return own_count(self.turns, len(self.completion))


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """What one forward pass takes. Rows are padded on the left, so every completion ends at the last column.

    T is the longest row, C the longest completion.
    """

    input_ids: Tensor  # (B, T) int64
    attention_mask: Tensor  # (B, T) int64, 1 for a real token
    position_ids: Tensor  # (B, T) int64, counted from the first real token
    targets: Tensor  # (B, C) int64, the completion, padded on the left
    mask: Tensor  # (B, C) float32, 1.0 for a completion token that the policy said
    advantages: Tensor  # (B,) float32


def compute_position_ids(attention_mask: Tensor) -> Tensor:
    """Count positions from the first real token: mask (B, T) `[0, 0, 1, 1]` -> `[0, 0, 0, 1]`.

    A padded row must get the positions it had when it was generated, else its log-probabilities are another's.
    """
    return (attention_mask.cumsum(1) - 1).clamp(min=0)


def is_usable(group: TrainingGroup) -> bool:
    """Whether the group's rewards differ, so that it teaches something; only such groups fill a batch."""
    return any(compute_advantages(group.rewards))


def select_rows(groups: Sequence[TrainingGroup]) -> list[Row]:
    """Return the completions that teach something: groups whose rewards all agree are dropped (online filter)."""
    return [
        Row(group.prompt, completion, advantage, turns)
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


def split_microbatches(rows: Sequence[Row], size: int) -> list[list[Row]]:
    """Cut into chunks of at most `size` rows of similar length, so that little of a pass is padding."""
    ordered = sorted(rows, key=lambda row: (len(row.prompt) + len(row.completion), row))
    return [ordered[start : start + size] for start in range(0, len(ordered), size)]


def pad_rows(rows: Sequence[Row], device: torch.device | str = "cpu") -> MicroBatch:
    """Build the tensors of one forward pass. `rows` is not empty."""
    width = max(len(row.prompt) + len(row.completion) for row in rows)
    longest = max(len(row.completion) for row in rows)
    lengths = [len(row.prompt) + len(row.completion) for row in rows]
    input_ids = torch.tensor(
        [[PAD] * (width - n) + [*row.prompt, *row.completion] for row, n in zip(rows, lengths, strict=True)]
    )
    attention_mask = torch.tensor([[0] * (width - n) + [1] * n for n in lengths])
    mask = torch.zeros(len(rows), longest)
    for number, row in enumerate(rows):
        for start, end in own_spans(row.turns, len(row.completion)):
            mask[number, longest - len(row.completion) + start : longest - len(row.completion) + end] = 1.0
    return MicroBatch(
        input_ids=input_ids.to(device),
        attention_mask=attention_mask.to(device),
        position_ids=compute_position_ids(attention_mask).to(device),
        targets=input_ids[:, width - longest :].to(device),
        mask=mask.to(device),
        advantages=torch.tensor([row.advantage for row in rows]).to(device),
    )


def count_tokens(rows: Sequence[Row]) -> int:
    """Count the completion tokens that the policy said: the normaliser of the loss."""
    return sum(row.learned for row in rows)


def count_all_tokens(groups: Sequence[TrainingGroup]) -> int:
    """Count the completion tokens of whole groups, whether they teach something or not."""
    return sum(group.learned for group in groups)
