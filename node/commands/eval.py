"""`intellect-node eval`: a checkpoint's pass rate on a task, with confidence intervals; and
whether another does better."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from node.parsing import Parser, print_line

if TYPE_CHECKING:
    import argparse

    from node.evaluation.figures import Table
    from node.terminal import Terminal
    from roles.inference.engine import Engine
    from roles.tasks import Task

EXAMPLES = """\
  intellect-node eval CHECKPOINT --task arithmetic --problems 200
  intellect-node eval CHECKPOINT --task arithmetic --problems 5 --show 5
  intellect-node eval CHECKPOINT --task maths --file problems.jsonl --samples 8 --k 1,8
  intellect-node eval BASE --against TRAINED --task reasoning-gym --set dataset=chain_sum --set size=500

The same command gives the same figures. With --keep FILE a killed command continues where it was.
"""


def main(words: Sequence[str]) -> int:
    """Run the command."""
    parser = Parser(
        "intellect-node eval", "Sample a checkpoint on a task and measure how often it passes.", examples=EXAMPLES
    )
    parser.add_argument("checkpoint", type=Path, help="folder with config.json, tokenizer and *.safetensors")
    parser.add_argument("--against", type=Path, help="another checkpoint, compared with the first problem by problem")
    parser.add_argument("--k", default="1", help="for pass@k, such as 1,4,8 (at most --samples)")
    parser.add_argument(
        "--show",
        type=int,
        default=0,
        metavar="N",
        help="print prompts and completions of the first N problems, except those that --keep has scores of",
    )
    parser.add_argument("--json", action="store_true", help="the figures as JSON")
    from node.evaluation.setting import add_sampling_flags

    add_sampling_flags(parser, samples=4)
    options = parser.parse_args(words)
    ks = _ks(options.k, options.samples)
    first, engine = _sample(options, options.checkpoint, name="")
    tables = {"checkpoint": first}
    if options.against is not None:
        tables["against"], _ = _sample(options, options.against, name=".against", engine=engine)
    report = _report(tables, ks)
    print_line(json.dumps(report, indent=2) if options.json else _say(report, options))
    return 0


def _sample(
    options: argparse.Namespace, checkpoint: Path, *, name: str, engine: Engine | None = None
) -> tuple[Table, Engine]:
    """Scores of a checkpoint, and its engine, which is reused for the next one because a machine
    may not have memory for two."""
    import tempfile

    from node.evaluation.sampling import Scores, run_plan
    from node.evaluation.setting import load_asked_engine, load_asked_task, load_asked_tool, plan_of
    from node.terminal import Terminal

    task = load_asked_task(options)
    use = load_asked_tool(options)
    plan = plan_of(options, checkpoint, task, use)
    engine, screen = load_asked_engine(options, checkpoint, engine=engine), Terminal(sys.stderr)
    with tempfile.TemporaryDirectory() as folder:
        path = options.keep.with_name(options.keep.name + name) if options.keep else Path(folder, "scores.jsonl")
        scores = Scores(path, plan)
        run_plan(
            plan,
            engine=engine,
            task=task,
            scores=scores,
            batch=options.batch,
            use=use,
            said=lambda done: screen.progress(f"{checkpoint.name}: {done} of {plan.problems} problems"),
            heard=partial(_show, screen, task, options.show),
        )
        screen.line(f"{checkpoint.name}: {plan.problems} problems sampled")
    return {problem: scores.table[problem] for problem in range(plan.problems)}, engine


def _show(screen: Terminal, task: Task, most: int, problem: int, scored: Sequence[tuple[str, float]]) -> None:
    """Show completions on standard error. Texts exist only for problems sampled now, not for those loaded by --keep."""
    if problem >= most:
        return
    lines = [f"-- problem {problem + 1}", *task.prompt(problem).split("\n")]
    for text, score in scored:
        lines += [f"-- score {score:g}", *text.split("\n")]
    for line in lines:
        screen.line(line)


def _ks(text: str, samples: int) -> list[int]:
    from node.errors import UsageError

    try:
        ks = sorted({int(part) for part in text.split(",")})
    except ValueError as error:
        raise UsageError(f"--k {text}: whole numbers with commas are meant, such as 1,4,8") from error
    if not ks or ks[0] < 1 or ks[-1] > samples:
        raise UsageError(f"--k {text}: from 1 to the number of samples, {samples} (--samples)")
    return ks


def _report(tables: dict[str, Table], ks: list[int]) -> dict[str, Any]:
    from dataclasses import asdict

    from node.evaluation.figures import compare, estimate_pass_at_k, estimate_score, pass_at_k, passes

    report: dict[str, Any] = {}
    for name, table in tables.items():
        rates = {f"pass@{k}": asdict(estimate_pass_at_k(table, k)) for k in ks}
        report[name] = {"problems": len(table), "score": asdict(estimate_score(table)), **rates}
    if "against" in tables:
        ours, theirs = tables["checkpoint"], tables["against"]
        report["difference"] = {
            f"pass@{k}": asdict(compare(ours, theirs, lambda scores, k=k: pass_at_k(len(scores), passes(scores), k)))  # type: ignore[misc]
            for k in ks
        }
    return report


def _say(report: dict[str, Any], options: argparse.Namespace) -> str:
    from node.evaluation.figures import Estimate

    lines = []
    for name, path in (("checkpoint", options.checkpoint), ("against", options.against)):
        if name in report:
            rates = ", ".join(
                f"{rate} {Estimate(**figure)}" for rate, figure in report[name].items() if rate.startswith("pass@")
            )
            lines.append(f"{path}: {rates}; {report[name]['problems']} problems, {options.samples} samples each")
    for rate, figure in report.get("difference", {}).items():
        found = Estimate(**figure)
        verdict = "better" if found.low > 0 else "worse" if found.high < 0 else "no difference that can be told"
        lines.append(f"difference in {rate}: {found} points: {options.against} is {verdict}")
    return "\n".join(lines)
