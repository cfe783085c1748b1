"""`intellect-node filter`: selects the problems of a data set that a base model can learn
from: those it sometimes passes."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from node.parsing import Parser, print_line

EXAMPLES = """\
  intellect-node filter BASE --task maths --file problems.jsonl --out kept.jsonl
  intellect-node filter BASE --task code --file problems.jsonl --out kept.jsonl --low 0 --high 0.5

Keeps problems whose share of passed samples lies between --low and --high (INTELLECT-2, section 3.1: 12.5% to 50% of 8).
Type a killed command again and it continues: its scores are kept beside the result.
"""


def main(words: Sequence[str]) -> int:
    """Run the command."""
    parser = Parser(
        "intellect-node filter", "Keep the problems that are neither too easy nor too hard.", examples=EXAMPLES
    )
    parser.add_argument("checkpoint", type=Path, help="the base model")
    parser.add_argument("--out", type=Path, required=True, help="where the kept problems go, as JSON lines")
    parser.add_argument("--low", type=float, default=0.125, help="least share of passed samples to keep a problem")
    parser.add_argument("--high", type=float, default=0.5, help="largest share to keep a problem")
    from node.evaluation.setting import add_sampling_flags

    add_sampling_flags(parser, samples=8)
    options = parser.parse_args(words)
    if options.file is None:
        parser.error("filter reads a data set: name it by --file")
    if not 0 <= options.low <= options.high <= 1:
        parser.error("0 <= --low <= --high <= 1 must hold")
    return _filter(options)


def _filter(options: argparse.Namespace) -> int:
    from node.evaluation.sampling import Scores, run_plan
    from node.evaluation.setting import load_asked_engine, load_asked_task, load_asked_tool, plan_of
    from node.terminal import Terminal

    task = load_asked_task(options)
    use = load_asked_tool(options)
    plan = plan_of(options, options.checkpoint, task, use)
    scores = Scores(options.keep or options.out.with_name(options.out.name + ".scores"), plan)
    screen = Terminal(sys.stderr)
    run_plan(
        plan,
        engine=load_asked_engine(options, options.checkpoint),
        task=task,
        scores=scores,
        batch=options.batch,
        use=use,
        said=lambda done: screen.progress(
            f"{done} of {plan.problems} problems, {_count(scores.table, options)} to keep"
        ),
    )
    screen.line(f"{plan.problems} problems sampled")
    kept = [number for number in range(plan.problems) if is_kept(scores.table[number], options.low, options.high)]
    write_lines(options.file, kept, options.out)
    print_line(f"{len(kept)} of {plan.problems} problems kept in {options.out}")
    return 0


def is_kept(scores: Sequence[float], low: float, high: float) -> bool:
    """Whether the share of samples that pass is within the bounds, inclusive."""
    from node.evaluation.figures import passes

    return low <= passes(scores) / len(scores) <= high


def write_lines(source: Path, numbers: Sequence[int], out: Path) -> None:
    """Write the rows with these numbers, unchanged, to a file that is created completely or not at all."""
    from dht.disk import write_durably
    from roles.tasks.problems import read_rows, row_line

    wanted = set(numbers)
    rows = enumerate(read_rows(source.read_bytes()))
    write_durably(out, "".join(row_line(row) + "\n" for number, row in rows if number in wanted).encode())


def _count(table: Mapping[int, Sequence[float]], options: argparse.Namespace) -> int:
    return sum(is_kept(each, options.low, options.high) for each in table.values())
