"""Our side: `python -m benchmarks.trainer.own CASE [--score]`. Prints one line of JSON."""

from __future__ import annotations

import json
import random
import resource
import sys
import time
from dataclasses import replace
from pathlib import Path

import torch

from benchmarks.trainer.case import BETAS, DELTA, EPS, LEARNING_RATE, MAX_GRAD_NORM, SPREAD, Case
from roles.rl.batch import Row, build_batch, count_tokens
from roles.rl.frozen import score_still
from roles.rl.learner import Learner
from roles.rl.metrics import Totals
from roles.rl.plan import Pass, plan_passes
from roles.rl.settings import GrpoSettings


def main(path: Path, *, score: bool) -> None:
    """Make the updates and report their times; or score the lines, and set old
    log-probabilities close to the scores."""
    case = Case.load(path)
    torch.set_num_threads(case.threads)
    learner = Learner(Path(case.model), make_settings(case), device="cpu")
    if score:
        with_old_logprobs(case, learner).save(path)
        return
    rows = [Row(line.prompt, line.completion, line.advantage) for line in case.lines]
    plan = plan_updates(case, learner, rows)
    loaded = peak_mib()
    said = [update(learner, plan, tokens=count_tokens(rows)) for _ in range(case.steps)]
    print(json.dumps({"updates": said, "loaded_mib": loaded, "peak_mib": peak_mib(), "passes": len(plan)}))


def make_settings(case: Case) -> GrpoSettings:
    """The peer's settings. One pass has half as many tokens as the peer's, counting padding."""
    return GrpoSettings(
        learning_rate=LEARNING_RATE,
        betas=BETAS,
        eps=EPS,
        delta=DELTA,
        kl_coef=0.0,
        max_grad_norm=MAX_GRAD_NORM,
        optimizer_steps=1,
        micro_tokens=max(case.longest, case.rows * case.longest // 2),
    )


def with_old_logprobs(case: Case, learner: Learner) -> Case:
    """The case with log-probabilities of a policy that differs slightly from the current one."""
    rng = random.Random(1)
    lines = []
    for line in case.lines:
        batch = build_batch([Row(line.prompt, line.completion, line.advantage)])
        scores = score_still(learner._scorer, batch, temperature=1.0).tolist()
        lines.append(replace(line, old=tuple(score + rng.gauss(0, SPREAD) for score in scores)))
    return replace(case, lines=tuple(lines))


def plan_updates(case: Case, learner: Learner, rows: list[Row]) -> list[Pass]:
    """The passes of an update, with the old log-probabilities of the case."""
    old = {(line.prompt, line.completion): line.old for line in case.lines}
    scorer = learner._scorer
    passes = plan_passes(rows, ranks=learner.ranks, settings=learner.settings, packs=scorer.packs, shares=scorer.shares)
    return [
        replace(one, old=torch.tensor([x for row in one.rows for x in old[row.prompt, row.completion]]))
        for one in passes
    ]


def update(learner: Learner, plan: list[Pass], *, tokens: int) -> dict[str, float]:
    """One optimizer step."""
    began, worked = time.perf_counter(), time.process_time()
    totals = Totals()
    learner._update(plan, tokens=tokens, totals=totals)
    seconds, worked = time.perf_counter() - began, time.process_time() - worked
    metrics = totals.compute_metrics([], [], ranks=learner.ranks, step=1, learning_rate=0.0, seconds=seconds)
    return {"loss": metrics.loss, "grad_norm": metrics.grad_norm, "seconds": seconds, "worked": worked}


def peak_mib() -> int:
    """Largest resident set so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


if __name__ == "__main__":
    main(Path(sys.argv[1]), score="--score" in sys.argv)
