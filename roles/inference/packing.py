"""Which (prompt, output) pairs are run through the model together."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from roles.inference.engine import Pair
from roles.inference.errors import SequenceTooLong

_LEAST_SHARED = 8
"""Minimum prompt length for a pass of its own."""


def check_sequences(sequences: Sequence[tuple[int, ...]], *, vocabulary: int, positions: int, more: int = 0) -> None:
    """Check that a model of these sizes can run the sequences with `more` tokens after them.

    Raises ValueError for an empty sequence or impossible tokens, `SequenceTooLong`.
    """
    for sequence in sequences:
        if not sequence:
            raise ValueError("a prompt needs at least one token")
        if min(sequence) < 0 or max(sequence) >= vocabulary:
            raise ValueError("token id outside the vocabulary")
        if len(sequence) + more > positions:
            raise SequenceTooLong(
                f"{len(sequence)} tokens and up to {more} more: the model has {positions} positions "
                "(a shorter prompt, or a smaller max_tokens)"
            )


def shared_batches(pairs: Sequence[Pair], *, most_tokens: int) -> Iterator[tuple[tuple[int, ...], list[int]]]:
    """Prompts that several pairs share, each with the indices of such pairs of similar length: outputs of at least two
    tokens, within `most_tokens` padded tokens including prompts. Pairs that do not fit are left out."""
    by_prompt: defaultdict[tuple[int, ...], list[int]] = defaultdict(list)
    for index, (prompt, output) in enumerate(pairs):
        if len(prompt) >= _LEAST_SHARED and len(output) > 1:
            by_prompt[prompt].append(index)
    for prompt, indices in by_prompt.items():
        lengths = [len(prompt) + len(pairs[i][1]) for i in indices]
        for batch in similar_batches(lengths, most_tokens=most_tokens):
            if len(batch) > 1:
                yield prompt, [indices[i] for i in batch]


def similar_batches(lengths: Sequence[int], *, most_tokens: int) -> Iterator[list[int]]:
    """Indices grouped by similar length, each group within `most_tokens` padded tokens (or a single long row)."""
    batch: list[int] = []
    for index in sorted(range(len(lengths)), key=lambda i: lengths[i]):
        if batch and (len(batch) + 1) * lengths[index] > most_tokens:
            yield batch
            batch = []
        batch.append(index)
    if batch:
        yield batch
