"""Assignments are derived from digests, byte for byte as documented."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roles.assignment import (
    TWO_63,
    TWO_64,
    assigned_groups,
    beacon_step,
    compute_beacon,
    compute_seed,
    draw,
    is_admitted,
    policy_window,
)

SEED = compute_seed(run="aa" * 32, node="12D3KooWnode", step=3, index=1, beacon=compute_beacon("bb" * 32, "cc" * 32))


def length_prefixed(*parts: bytes) -> bytes:
    return b"".join(len(part).to_bytes(4, "big") + part for part in parts)


def test_draw__first_eight_bytes_of_the_digest() -> None:
    preimage = length_prefixed(b"draw/1", SEED.encode(), b"prompt", (7).to_bytes(8, "big"))
    expected = int.from_bytes(hashlib.sha256(preimage).digest()[:8], "big")
    assert draw(SEED, "prompt", 7) == expected
    assert draw(SEED, "prompt", 7, 1000) == expected % 1000


def test_draw__uneven_tail_is_drawn_again() -> None:
    below = TWO_63 + 1  # nearly half of all first values fall in the tail
    values = [draw(SEED, "tail", number, below) for number in range(64)]
    first = [draw(SEED, "tail", number) for number in range(64)]
    assert all(value < below for value in values)
    assert any(value != one for value, one in zip(values, first, strict=True))
    assert all(value == one for value, one in zip(values, first, strict=True) if one < below)


def test_compute_seed__every_part_counts__ckpt_13_top_21() -> None:
    fields: dict[str, Any] = {"run": "aa" * 32, "node": "n", "step": 1, "index": 0, "beacon": "bb" * 32}
    others: list[dict[str, Any]] = [{"run": "ab" * 32}, {"node": "m"}, {"step": 2}, {"index": 1}, {"beacon": "bc" * 32}]
    seeds = {compute_seed(**{**fields, **other}) for other in ({}, *others)}
    assert len(seeds) == 6


def test_assigned_groups__vector__top_20() -> None:
    groups = assigned_groups("00" * 32, problems=100, groups=2, group_size=2)
    assert [group.group for group in groups] == [0, 1]
    assert [group.problem for group in groups] == [draw("00" * 32, "prompt", g, 100) for g in (0, 1)]
    assert groups[1].seeds == tuple(draw("00" * 32, "sample", i, TWO_63) for i in (2, 3))


def test_assigned_groups__a_longer_submission_begins_like_a_shorter_one() -> None:
    few = assigned_groups(SEED, problems=50, groups=2, group_size=4)
    assert assigned_groups(SEED, problems=50, groups=5, group_size=4)[:2] == few


@given(st.integers(1, 2**53), st.integers(0, 10_000))
def test_draw__below_its_bound(below: int, number: int) -> None:
    assert 0 <= draw(SEED, "x", number, below) < below


def test_draw__uniform_over_a_small_range() -> None:
    counts = [0] * 8
    for number in range(4000):
        counts[draw(SEED, "uniform", number, 8)] += 1
    expected = 4000 / 8
    assert sum((count - expected) ** 2 / expected for count in counts) < 24.3  # chi-square, 7 degrees, p = 0.001


def test_is_admitted__share_of_all_and_none() -> None:
    assert is_admitted(SEED, TWO_64)
    assert not is_admitted(SEED, 0)


def test_is_admitted__half_of_the_seeds_at_half_the_share() -> None:
    seeds = [f"{number:064x}" for number in range(2000)]
    assert 900 < sum(is_admitted(seed, TWO_64 // 2) for seed in seeds) < 1100


@pytest.mark.parametrize(
    ("step", "async_level", "window"), [(1, 2, [0]), (2, 2, [0, 1]), (3, 2, [0, 1, 2]), (4, 2, [1, 2, 3]), (5, 0, [4])]
)
def test_policy_window__design_section_3(step: int, async_level: int, window: list[int]) -> None:
    assert list(policy_window(step, async_level)) == window
    assert beacon_step(step, async_level) == window[0]
