"""`python -m benchmarks.tasks [--quick] [--only rates|answers|hostile]`: tables, then one line of JSON, in two minutes or one."""

from __future__ import annotations

import argparse
import json
import tempfile
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.command import finish, run
from benchmarks.tasks.answers import PAIRS
from benchmarks.tasks.hostile import list_hostile
from benchmarks.tasks.scoring import measure_all
from roles.sandbox.program import why_unavailable
from roles.tasks import Task, load_task

PARTS = ("rates", "answers", "hostile")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tasks", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a second a task instead of ten")
    parser.add_argument("--only", choices=PARTS)
    options = parser.parse_args()
    if (reason := why_unavailable()) is not None:
        parser.error(f"scorers run in a sandbox, and none works here: {reason}")
    parts = {
        "rates": lambda: print_rates(1.0 if options.quick else 10.0),
        "answers": print_answers,
        "hostile": print_hostile,
    }
    chosen = [options.only] if options.only else PARTS
    finish("tasks", **{name: parts[name]() for name in chosen})


def print_rates(seconds: float) -> dict[str, float]:
    """Scorings per second."""
    rates = measure_all(seconds)
    _print(("task", "scorings/s", "threads"), ((r.name, f"{r.a_second:,.1f}", str(r.threads)) for r in rates))
    return {rate.name: round(rate.a_second, 1) for rate in rates}


def print_answers() -> dict[str, int]:
    """The agreement table: a person's judgement, and the scorer's."""
    with tempfile.TemporaryDirectory() as folder:
        task = _maths(Path(folder))
        judged = [(*pair, task.score(number, pair[2]) == 1.0) for number, pair in enumerate(PAIRS)]
    rows = [
        (form, answer, said, _word(same), _word(found), "" if same == found else "<-- differ")
        for form, answer, said, same, found in judged
    ]
    _print(("form", "answer", "said", "a person", "the scorer", ""), rows)
    counts = Counter((same, found) for _, _, _, same, found in judged)
    return {
        "pairs": len(judged),
        "agree": counts[True, True] + counts[False, False],
        "right_answers_missed": counts[True, False],
        "wrong_answers_taken": counts[False, True],
    }


def print_hostile() -> dict[str, Any]:
    """The outcome of each hostile program."""
    found = list_hostile()
    _print(("kind", "program", "what became of it"), found)
    bad = [name for _, name, outcome in found if outcome in ("DONE", "CREDITED")]
    return {"programs": len(found), "got_through": bad}


def _maths(folder: Path) -> Task:
    import hashlib

    rows = (json.dumps({"prompt": "What is it?", "answer": answer}) + "\n" for _, answer, _, _ in PAIRS)
    data = "".join(rows).encode()
    digest = hashlib.sha256(data).hexdigest()
    (folder / digest).write_bytes(data)
    return load_task("maths", {"data": digest}, folder)


def _word(same: bool) -> str:
    return "same" if same else "other"


def _print(head: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    table = [head, *rows]
    widths = [max(len(row[column]) for row in table) for column in range(len(head))]
    for row in table:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    print()


if __name__ == "__main__":
    run(main)
