"""How often an honest submission is refused.

    python -m benchmarks.false_refusals [COUNT] [--quick]

Every submission is made as a worker makes it (sampled in a batch with a key-value cache) and judged as a validator does
(one packed prefill), with the shipped policy and the default spec. Prints refusals, the worst statistics, and times; the
last line is JSON. COUNT is 500 when not given.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections import Counter
from collections.abc import Sequence

from benchmarks.command import count, finish, run
from dht.encoding import digest
from roles.messages import Statistics
from roles.spec import SamplingSpec
from roles.verification import Finding, Verifier
from tests.builders import World, make_rollouts, make_spec, make_world


def judge_one(world: World, verifier: Verifier, number: int) -> tuple[Finding, float]:
    """Make one honest submission and judge it. Also returns the seconds of the judging."""
    seed = digest("benchmark", number)
    made = make_rollouts(world, seed=seed)
    began = time.perf_counter()
    finding = verifier.judge(made.submission, seed=seed, data=made.blob)
    return finding, time.perf_counter() - began


def main(arguments: Sequence[str] | None = None) -> int:
    """Judge submissions and print the figures. 0 when none was called a fault."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.false_refusals", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("count", type=count, nargs="?", metavar="COUNT", help="submissions (default 500)")
    parser.add_argument("--quick", action="store_true", help="20 submissions, unless COUNT says otherwise")
    options = parser.parse_args(arguments)
    return measure(options.count or (20 if options.quick else 500))


def measure(submissions: int) -> int:
    """Judge so many."""
    world = make_world(make_spec(sampling=SamplingSpec()))
    verifier = Verifier(spec=world.spec, engine=world.engine, task=world.task)
    outcomes: Counter[str] = Counter()
    worst: dict[str, int] = dict.fromkeys(Statistics.model_fields, 0)
    seconds = []
    for number in range(submissions):
        finding, spent = judge_one(world, verifier, number)
        outcomes[f"{finding.outcome} ({finding.reason.name.lower()})"] += 1
        seconds.append(spent)
        for name, value in (finding.statistics.model_dump() if finding.statistics else {}).items():
            lower = name == "tokens_exact"
            worst[name] = min(worst[name] or value, value) if lower else max(worst[name], value)
    print(f"{submissions} honest submissions: {dict(outcomes)}")
    print(f"worst statistics (thousandths but for counts): {worst}")
    median, longest = 1000 * statistics.median(seconds), 1000 * max(seconds)
    print(f"judging: median {median:.0f} ms, longest {longest:.0f} ms")
    figures = {"judging_ms": round(median, 1), "longest_ms": round(longest, 1)}
    finish("false_refusals", submissions=submissions, outcomes=dict(outcomes), worst=worst, **figures)
    return int(any(name.startswith("fault") for name in outcomes))


if __name__ == "__main__":
    run(main)
