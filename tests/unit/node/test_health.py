"""The process's own health: loop lag and the limit of open files."""

from __future__ import annotations

import resource

from node.health import LoopLag, raise_file_limit


def test_percentile__of_known_samples() -> None:
    lag = LoopLag()
    lag.samples.extend(number / 100 for number in range(100))
    assert (lag.percentile(0.5), lag.percentile(0.99), lag.percentile(1.0)) == (0.5, 0.99, 0.99)


def test_percentile__of_nothing() -> None:
    assert LoopLag().percentile(0.99) == 0.0


def test_raise_file_limit__never_lowers_it() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    assert raise_file_limit(wanted=16) >= before
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == before
