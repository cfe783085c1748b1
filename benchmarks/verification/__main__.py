"""What a validator spends on a submission, compared with its worker: in total, and by part.

python -m benchmarks.verification [--quick] [--model DIR] [--validators N] [--threads N]

A group of 8 completions of 128 tokens is made as by a worker (sampled in a batch, proofs, Parquet) and judged as by a
validator, once with an audit and once without. `--model` names a folder with a real model (SmolLM2-135M-Instruct for
the published figures); without it the built-in policy is used. Shares are of CPU seconds, which other processes disturb
less. The last figures are for all validators together: each does the cheap checks on every submission, and audits some.
The last line printed is JSON.
"""

from __future__ import annotations

import argparse
import resource
import sys
from dataclasses import dataclass
from pathlib import Path

from benchmarks.command import count, finish, model_folder, run
from benchmarks.group import Spent, clocked, dtype_of, load_engine
from dht.encoding import digest
from node.base_model import default_model
from roles.rollouts.schema import read_rollouts
from roles.spec import CheckSpec, ModelSpec, RunSpec, SamplingSpec, TaskSpec, Threshold
from roles.tasks import load_task
from roles.toploc.encoding import ENCODINGS
from roles.toploc.verify import verify_proofs
from roles.verification import Finding, Verifier
from roles.verification.case import Case, Means
from roles.worker.generation import HeldPolicy, Made
from tests.builders import World, make_rollouts, make_spec, make_world, manifest_of

RATES = (1000, 200, 100, 50, 20)
"""Audits per thousand submissions."""
GOAL = 5.0
WIDE = Threshold(exponent_mismatches=38, mantissa_mean=10_000, mantissa_median=8000, margin_mean=400)


@dataclass(frozen=True, slots=True)
class Bench:
    """The run and its engine."""

    world: World
    model: Path

    def make(self) -> Made:
        """One honest submission."""
        policy = HeldPolicy(0, manifest_of(0), self.model)
        return make_rollouts(self.world, policy=policy, seed=digest("benchmark", 0))

    def judge(self, made: Made, *, audit: bool) -> Finding:
        """A validator's finding. What it has accepted before is forgotten each time."""
        world = self.world
        verifier = Verifier(spec=world.spec, engine=world.engine, task=world.task)
        return verifier.judge(made.submission, seed=digest("benchmark", 0), data=made.blob, audit=audit)


def build_bench(model: Path, *, rows: int, tokens: int, threads: int) -> Bench:
    """A run with one group per submission on this model, with thresholds that no honest work comes near."""
    engine, task = load_engine(model, threads=threads), load_task("arithmetic", {})
    base = make_spec()
    spec: RunSpec = make_spec(
        model=ModelSpec.model_validate({**base.model.model_dump(), "name": model.name, "dtype": dtype_of(model)}),
        tasks=(TaskSpec(name="arithmetic", size=task.size, digest=task.digest),),
        sampling=SamplingSpec(group_size=rows, groups_per_submission=1, max_tokens=tokens, max_prompt_tokens=256),
        checks=CheckSpec(honest=WIDE, fraud=WIDE),
    )
    world = make_world(spec)
    world.engine, world.task = engine, task
    return Bench(world, model)


def measure(bench: Bench, *, rounds: int) -> dict[str, object]:
    """Make and judge one group, timing each part."""
    made: list[Made] = []
    making = clocked(lambda: made.append(bench.make()))
    submission, found = made[-1], bench.judge(made[-1], audit=True)  # also warms up
    before = _peak()
    audit = clocked(lambda: bench.judge(submission, audit=True), rounds=rounds)
    grown = _peak() - before
    cheap = clocked(lambda: bench.judge(submission, audit=False), rounds=2 * rounds)
    return {
        "outcome": f"{found.outcome} ({found.reason.name.lower()}) {found.detail}".strip(),
        "tokens": submission.submission.tokens,
        "vocabulary": bench.world.engine.vocabulary,
        "generate_seconds": making.wall,
        "generate_cpu_seconds": making.cpu,
        "audit_seconds": audit.wall,
        "audit_cpu_seconds": audit.cpu,
        **_parts(bench, submission, rounds),
        "cheap_checks_ms": 1000 * cheap.cpu,
        "peak_memory_grew_mb": grown / 1e6,
        "all_logits_mb": submission.submission.tokens * bench.world.engine.vocabulary * 4 / 1e6,
        "audit_percent_of_generation": audit.share_of(making),
        "cheap_percent_of_generation": cheap.share_of(making),
    }


def _parts(bench: Bench, made: Made, rounds: int) -> dict[str, object]:
    """CPU milliseconds of the parts of an audit."""
    world, checks = bench.world, bench.world.spec.checks
    means = Means(
        spec=world.spec,
        engine=world.engine,
        task=world.task,
        duplicates=Verifier(spec=world.spec, engine=world.engine, task=world.task).duplicates,
        read=read_rollouts,
    )
    case = Case(made.submission, digest("benchmark", 0), made.blob, means)
    file, prefill = case.file, case.prefill
    pairs = [(item.states, row.proof) for item, row in zip(prefill, file.rows, strict=True)]
    encoding = ENCODINGS[world.spec.model.dtype]
    spent: dict[str, Spent] = {
        "prefill": clocked(
            lambda: world.engine.prefill([(row.prompt, row.output) for row in file.rows]), rounds=rounds
        ),
        "logits_and_margins": clocked(lambda: _readings(case), rounds=rounds),
        "proofs": clocked(
            lambda: verify_proofs(pairs, encoding=encoding, topk=checks.topk, chunk=checks.chunk), rounds=rounds
        ),
    }
    return {f"{name}_cpu_ms": 1000 * item.cpu for name, item in spent.items()}


def _readings(case: Case) -> None:
    case.__dict__.pop("readings", None)
    _ = case.readings


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def validator_side(row: dict[str, object], validators: int) -> dict[str, object]:
    """CPU time that all validators together spend, as a percentage of the swarm's generation,
    by audit rate (thousandths)."""
    audit, cheap = float(str(row["audit_percent_of_generation"])), float(str(row["cheap_percent_of_generation"]))
    shares = {rate: validators * (cheap + rate / 1000 * (audit - cheap)) for rate in RATES}
    rate = max(0.0, (GOAL / validators - cheap) / (audit - cheap))
    return {
        "case": f"{validators} validators",
        **{f"audit_rate_{rate}": share for rate, share in shares.items()},
        "audit_rate_for_5_percent": min(1000, int(1000 * rate)),
    }


def show(row: dict[str, object]) -> None:
    """One row for people."""
    sys.stdout.write(f"\n{row['case']}\n")
    for name, value in row.items():
        if name != "case":
            sys.stdout.write(f"  {name:28} {f'{value:.3f}' if isinstance(value, float) else value}\n")
    sys.stdout.flush()


def main(options: argparse.Namespace) -> int:
    """Measure and print. Returns 1 when honest work was called a fault."""
    model = options.model or default_model()
    rows, tokens = (4, 32) if options.quick else (8, 128)
    bench = build_bench(model, rows=rows, tokens=tokens, threads=options.threads)
    case = f"a group of {rows} x {tokens} tokens of {model.name} in {dtype_of(model)}"
    group = {"case": case} | measure(bench, rounds=1 if options.quick else 3)
    side = validator_side(group, options.validators)
    show(group)
    show(side)
    sys.stdout.write("\n")
    finish("verification", rows=[group, side])
    return int(not str(group["outcome"]).startswith("accept"))


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.verification", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--quick", action="store_true", help="4 completions of 32 tokens")
    parser.add_argument("--model", type=model_folder, help="a model folder; default the built-in policy")
    parser.add_argument("--validators", type=count, default=3, help="each looks at every submission (default 3)")
    parser.add_argument("--threads", type=count, default=1, help="of PyTorch (default 1)")
    return parser.parse_args()


if __name__ == "__main__":
    run(lambda: main(parse()))
