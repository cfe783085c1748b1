"""Which finished runs `benchmarks.async_levels` takes for its own, and its list of levels."""

from __future__ import annotations

import argparse

import pytest

from benchmarks.async_levels import NODES, is_same, level_list


def test_level_list__numbers_with_commas() -> None:
    assert level_list("0,2,4") == (0, 2, 4)
    for text in ("", "0,", "a", "-1"):
        with pytest.raises(argparse.ArgumentTypeError):
            level_list(text)


def test_is_same__as_long_and_in_as_large_a_network() -> None:
    options = argparse.Namespace(steps=6, **NODES)
    assert is_same({"steps": 6}, options)  # as rows were written before they said
    assert is_same({"steps": 6, **NODES}, options)
    assert not is_same({"steps": 4, **NODES}, options)
    assert not is_same({"steps": 6, **NODES, "workers": 1}, options)
