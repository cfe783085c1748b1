"""Sketches of completions, and the index of who was credited for them first."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from roles.verification.duplicates import KEPT, RUN, DuplicateIndex, sketch_of

ALICE, BOB = ("alice", 1, 0), ("bob", 1, 0)


def completion(seed: int = 0, tokens: int = 128) -> list[int]:
    return [int(token) for token in np.random.default_rng(seed).integers(0, 50_000, tokens)]


def shared(one: list[int], other: list[int]) -> int:
    return len(sketch_of(one).runs.keys() & sketch_of(other).runs.keys())


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda tokens: tokens, id="none"),
        pytest.param(lambda tokens: [*tokens[:60], 7, *tokens[61:]], id="one_changed"),
        pytest.param(lambda tokens: [*tokens[:60], 7, *tokens[60:]], id="one_put_in"),
        pytest.param(lambda tokens: tokens[:60] + tokens[61:], id="one_left_out"),
        pytest.param(lambda tokens: [7, 7, 7, *tokens], id="moved"),
        pytest.param(lambda tokens: tokens[:100], id="cut_short"),
        pytest.param(lambda tokens: [*tokens, *completion(9, 60)], id="gone_on"),
    ],
)
def test_sketch_of__copies_share_most_entries(change: Callable[[list[int]], list[int]]) -> None:
    counts = [shared(completion(seed), change(completion(seed))) for seed in range(20)]
    assert min(counts) >= 1
    assert sum(counts) / len(counts) > KEPT / 2


def test_sketch_of__others_share_none() -> None:
    assert shared(completion(0), completion(1)) == 0


def test_sketch_of__which_runs_count_is_a_secret() -> None:
    """A copy altered where one validator looks is still recognised by the others."""
    tokens = completion()
    broken = list(tokens)
    for start in sketch_of(tokens, b"mine").runs.values():
        broken[start] += 1
    assert not sketch_of(tokens, b"mine").runs.keys() & sketch_of(broken, b"mine").runs.keys()
    others = [bytes([number]) for number in range(8)]
    assert sum(bool(sketch_of(tokens, k).runs.keys() & sketch_of(broken, k).runs.keys()) for k in others) >= 6


def test_sketch_of__is_bounded_and_says_where() -> None:
    tokens = completion(tokens=5000)
    sketch = sketch_of(tokens)
    assert len(sketch.runs) == KEPT
    assert all(0 <= start <= len(tokens) - RUN for start in sketch.runs.values())
    assert len(sketch.text) == 16 * KEPT


@pytest.mark.parametrize("tokens", [[], [3], [3] * RUN])
def test_sketch_of__short_ones_are_one_run(tokens: list[int]) -> None:
    assert list(sketch_of(tokens).runs.values()) == [0]


def test_index__the_first_keeps_its_runs() -> None:
    index, sketch = DuplicateIndex(), sketch_of(completion())
    index.add([sketch.text], ALICE)
    index.add([sketch.text], BOB)
    assert {index.owner(run) for run in sketch.runs} == {ALICE}
    assert index.owner("0" * 16) is None


def test_index__forgets_the_oldest_first() -> None:
    index = DuplicateIndex(limit=KEPT)
    index.add([sketch_of(completion(0)).text], ALICE)
    index.add([sketch_of(completion(1)).text], BOB)
    assert len(index) == KEPT
    assert {index.owner(run) for run in sketch_of(completion(1)).runs} == {BOB}
