"""Which pairs run together: each exactly once, common prompts shared, padding bounded."""

from __future__ import annotations

from roles.inference.engine import Pair
from roles.inference.packing import shared_batches, similar_batches

LONG = tuple(range(10))


def pairs_of(*outputs: int, prompt: tuple[int, ...] = LONG) -> list[Pair]:
    return [(prompt, (7,) * count) for count in outputs]


def test_shared_batches__one_prompt_many_outputs() -> None:
    assert list(shared_batches(pairs_of(5, 3, 4), most_tokens=100)) == [(LONG, [1, 2, 0])]


def test_shared_batches__within_the_most_tokens() -> None:
    found = list(shared_batches(pairs_of(5, 5, 5, 5), most_tokens=30))
    assert [batch for _, batch in found] == [[0, 1], [2, 3]]


def test_shared_batches__leave_out_what_gains_nothing() -> None:
    """A short or unshared prompt, one token after it, a row too long to share a batch."""
    short, other = (1, 2), (*LONG, 3)
    pairs = [*pairs_of(4, 4, prompt=short), *pairs_of(4, prompt=other), *pairs_of(1, 1), *pairs_of(60, 70)]
    assert list(shared_batches(pairs, most_tokens=80)) == []


def test_similar_batches__each_index_once_by_length() -> None:
    found = list(similar_batches([9, 1, 5, 2, 50], most_tokens=12))
    assert found == [[1, 3], [2], [0], [4]]
    assert list(similar_batches([], most_tokens=12)) == []
