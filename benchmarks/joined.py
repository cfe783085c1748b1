"""Does the joined detector refuse honest work as seldom as it is asked to?

    python -m benchmarks.joined [--quick]

Uses synthetic honest noise that does *not* follow the detector's model: what a submission or completion shares is
log-normal, misses are compound Poisson. A fit to N submissions in each of two environments judges others that it
has not seen. No model is run.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence

import numpy as np
import torch

from benchmarks.command import finish, run
from roles.toploc.joined import Calibration, History, fit, history_limit, score
from roles.toploc.observation import Observation
from tests.unit.roles.toploc.joined_builders import make_observation

ASKED = (0.1, 0.01, 0.001)
SHARED = (0.05, 0.15, 0.3)
SIZES = (8, 24, 100)
LENGTHS = (16, 128)
MONTH = 300


def honest(seed: int, count: int, shared: float, tokens: int, times: float = 1.0) -> list[Observation]:
    """Submissions of 8 completions whose noise is multiplied by exp(normal(0, shared))."""
    rng = np.random.default_rng(seed)
    return [
        make_observation(rng, times=times * float(np.exp(rng.normal(0, shared))), tokens=tokens) for _ in range(count)
    ]


def fits(size: int, shared: float, tokens: int, repeats: int) -> Iterator[tuple[int, Calibration]]:
    """Calibrations of independent collections."""
    for repeat in range(repeats):
        environments = {str(k): honest(1000 * repeat + k, size, shared, tokens) for k in range(2)}
        yield repeat, fit(environments).calibration


def refused(size: int, shared: float, tokens: int, *, repeats: int, judged: int, times: float = 1.0) -> Sequence[float]:
    """Share of submissions refused at each requested rate."""
    ps = [
        score(each, calibration).p
        for repeat, calibration in fits(size, shared, tokens, repeats)
        for each in honest(10**6 + repeat, judged, shared, tokens, times)
    ]
    return [float(np.mean(np.array(ps) < at)) for at in ASKED]


def alarmed(shared: float, *, nodes: int) -> float:
    """Share of honest nodes whose history reaches the limit of one in 100 within a
    month, each with a fit of its own."""
    limit, alarms = history_limit(submissions=MONTH, one_in=100), 0
    for repeat, calibration in fits(24, shared, 128, nodes):
        history, highest = History(), 0.0
        for each in honest(10**7 + repeat, MONTH, shared, 128):
            history = history.after(score(each, calibration).evidence, limit=limit)
            highest = max(highest, history.total)
        alarms += highest >= limit
    return alarms / nodes


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the tables and the JSON line; 1 when honest work is refused 1.5 times as often as asked (at one in 100), or more."""
    torch.set_num_threads(1)
    parser = argparse.ArgumentParser(prog="python -m benchmarks.joined", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="fewer fits, fewer judged")
    quick = parser.parse_args(arguments).quick
    repeats, judged, failed = (2, 200, False) if quick else (8, 500, False)
    rows, histories = [], []
    print("shared noise  tokens  fitted to  refused when asked for 10%   1%      0.1%    noise doubled, at 0.1%")
    for shared in SHARED:
        for tokens in LENGTHS:
            for size in SIZES:
                found = refused(size, shared, tokens, repeats=repeats, judged=judged)
                twice = refused(size, shared, tokens, repeats=2, judged=judged // 2, times=2.0)[-1]
                failed |= found[1] > 0.015
                rates = "  ".join(f"{rate:6.2%}" for rate in found)
                print(f"{shared:12}  {tokens:6}  {2 * size:9}  {rates:>35}  {twice:22.1%}", flush=True)
                told = {str(asked): rate for asked, rate in zip(ASKED, found, strict=True)}
                rows.append({"shared": shared, "tokens": tokens, "fitted": 2 * size, "refused": told, "doubled": twice})
    nodes = 10 if quick else 100
    for shared in SHARED[:2]:
        part = alarmed(shared, nodes=nodes)
        histories.append({"shared": shared, "nodes": nodes, "alarmed": part})
        print(
            f"histories of {nodes} honest nodes over {MONTH} submissions, shared {shared}: {part:.1%} alarmed, one in 100 asked"
        )
    finish("joined", rows=rows, histories=histories)
    return int(failed)


if __name__ == "__main__":
    run(main)
