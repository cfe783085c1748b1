"""How often each cheat is caught, and how often honest work is refused.

python -m benchmarks.attacks --quick                        the built-in policy, a minute
python -m benchmarks.attacks --model DIR --data FOLDER      everything; resumes where it was stopped
python -m benchmarks.attacks --model DIR --minutes 5        a part of it, then the table of what there is
python -m benchmarks.attacks --model DIR --report           only the table, nothing generated

Observations are kept below --data (default: ~/.cache/intellect-node/attacks), in one file per model and sampling
scheme. The last line printed is JSON.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import torch

from benchmarks.attacks.bench import Bench
from benchmarks.attacks.certain import Trial, try_all
from benchmarks.attacks.classes import ATTACKS, Attack
from benchmarks.attacks.collecting import BATCH_GROUPS, Collector
from benchmarks.attacks.detecting import detect, fit_honest, judge_honest
from benchmarks.attacks.grinding import grind
from benchmarks.attacks.store import Record, Store
from benchmarks.attacks.table import Results, json_of, lines_of, measured, write_into
from benchmarks.command import count, model_folder, run, share
from node.base_model import default_model

DATA = Path("~/.cache/intellect-node/attacks")
BUILT_IN_TOKENS = 44
LEAST_GROUPS = 4
"""Minimum number of groups for a class to be reported."""
CERTAIN, QUICK_CERTAIN = 20, 1
QUICK_SECONDS, QUICK_SHARE = 25.0, 0.25


def main(arguments: Sequence[str] | None = None) -> int:
    """Collect what is missing, print the table and the JSON line. Returns 1 when a certain cheat was not refused."""
    options = _options(arguments)
    torch.set_num_threads(options.threads)
    bench = Bench(options.model or default_model(), max_tokens=128 if options.model else BUILT_IN_TOKENS)
    certain = (
        try_all(QUICK_CERTAIN if options.quick else CERTAIN) if not (options.no_certain or options.collect) else []
    )
    with tempfile.TemporaryDirectory(prefix="intellect-attacks-") as temporary:
        store = Store(Path(temporary) if options.quick else options.data.expanduser(), bench.tag)
        if not options.report:
            _collect(options, bench, store)
        if options.collect:
            return 0
        results = _judge(options.model, certain, store)
    print("\n".join(lines_of(results)))
    if options.write:
        write_into(options.write, measured(results))
    print(json_of(results))
    return int(any(trial.caught < trial.tried for trial in certain))


def _collect(options: argparse.Namespace, bench: Bench, store: Store) -> None:
    minutes = QUICK_SECONDS / 60 if options.quick else options.minutes
    deadline = time.monotonic() + 60 * minutes if minutes else None
    chosen = [
        item for item in ATTACKS if not options.only or any(word in item.name for word in options.only.split(","))
    ]
    chosen = [item for item in chosen if not item.needs or importlib.util.find_spec(item.needs)]
    collector = Collector(bench, store, deadline=deadline, at_once=options.at_once)
    with store.writing():
        is_done = collector.collect(chosen, share=QUICK_SHARE if options.quick else options.share)
    if not is_done and not options.quick:
        sys.stderr.write(f"not done: the same command goes on from {store.path}\n")


def _judge(model: Path | None, certain: Sequence[Trial], store: Store) -> Results:
    held = {name: store.groups(name) for item in ATTACKS for name in item.claims()}
    held = {name: records for name, records in held.items() if len(records) >= LEAST_GROUPS}
    honest: dict[str, list[Record]] = {
        item.name: held[item.name] for item in ATTACKS if item.is_honest and item.name in held
    }
    name = model.name if model else "built-in policy"
    if not honest:
        return Results(name, certain, grind())
    fitted = fit_honest(honest)
    attacks: list[Attack] = [item for item in ATTACKS if not item.is_honest]
    return Results(
        name,
        certain,
        grind(),
        fitted,
        judge_honest(honest),
        {key: len(records) for key, records in honest.items()},
        [
            detect(claim, held[claim], fitted.calibration)
            for item in attacks
            for claim in item.claims()
            if claim in held
        ],
    )


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.attacks",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--model", type=model_folder, help="checkpoint folder (default: the built-in policy)")
    parser.add_argument("--data", type=Path, default=DATA, help="folder of the observations")
    parser.add_argument("--quick", action="store_true", help="the built-in policy and few groups; nothing is kept")
    parser.add_argument("--report", action="store_true", help="make nothing: the table of what there is")
    parser.add_argument("--collect", action="store_true", help="make observations only; print nothing")
    parser.add_argument("--minutes", type=float, help="stop making observations after so long")
    parser.add_argument("--at-once", type=count, default=BATCH_GROUPS, help="groups of an attack generated together")
    parser.add_argument("--share", type=share, default=1.0, help="of every class's groups, so large a part")
    parser.add_argument("--only", help="classes whose names contain one of these words, with commas between")
    parser.add_argument("--write", type=Path, help="page whose figures are replaced: docs/detection.md")
    parser.add_argument("--no-certain", action="store_true", help="leave out the cheats that need no statistics")
    parser.add_argument("--threads", type=count, default=torch.get_num_threads(), help="of PyTorch")
    options = parser.parse_args(arguments)
    if options.quick and options.model:
        parser.error("--quick is of the built-in policy")
    return options


if __name__ == "__main__":
    run(main)
