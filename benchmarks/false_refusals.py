"""How often an honest submission is refused: `python -m benchmarks.false_refusals [COUNT]`, default 500.

Every submission is made as by a worker (sampled in a batch with a key-value cache) and judged as by a validator (one
packed prefill), with the shipped policy and the default spec. Prints refusals, the worst statistics, and times.
"""

from __future__ import annotations

import sys
import time
from collections import Counter

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


def main(count: int) -> int:
    """Judge `count` submissions and print the figures. Returns 0 when none was called a fault."""
    world = make_world(make_spec(sampling=SamplingSpec()))
    verifier = Verifier(spec=world.spec, engine=world.engine, task=world.task)
    outcomes: Counter[str] = Counter()
    worst: dict[str, int] = dict.fromkeys(Statistics.model_fields, 0)
    seconds = []
    for number in range(count):
        finding, spent = judge_one(world, verifier, number)
        outcomes[f"{finding.outcome} ({finding.reason.name.lower()})"] += 1
        seconds.append(spent)
        for name, value in (finding.statistics.model_dump() if finding.statistics else {}).items():
            lower = name == "tokens_exact"
            worst[name] = min(worst[name] or value, value) if lower else max(worst[name], value)
    print(f"{count} honest submissions: {dict(outcomes)}")
    print(f"worst statistics (thousandths but for counts): {worst}")
    print(f"judging: median {sorted(seconds)[count // 2] * 1000:.0f} ms, longest {max(seconds) * 1000:.0f} ms")
    return int(any(name.startswith("fault") for name in outcomes))


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 500))
