"""`intellect-node audit`: re-check a run from its public records."""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import secrets
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from node.commands.reading import add_run_flags, quiet_config
from node.errors import ConfigError
from node.parsing import Parser, print_line

if TYPE_CHECKING:
    from node.audit import Report
    from node.audit.rollouts import Sample
    from node.config import NodeConfig
    from node.visitor import Visit
    from roles.spec import RunSpec

_OF_CHECKPOINT = re.compile(r"^(.*\bcheckpoint) (\d+)(: .*)$")
EXAMPLES = """\
  intellect-node audit RUN                   the ledger, every tally, every signature in it
  intellect-node audit RUN --sample 0.05     and a twentieth of the rollouts, with the model
  intellect-node audit RUN --json

Blobs come from relays by digest: old ones from those started with --archive. What could not be checked is printed.
exit codes: 0 all of it holds; 1 something does not, and is named; 3 nothing is wrong, but records are missing
"""
INCOMPLETE = 3
DATA_SET_SECONDS = 120.0
"""Timeout for finding the data sets of the run's tasks at the relays."""


def main(words: Sequence[str]) -> int:
    """Run the command."""
    parser = Parser(
        "intellect-node audit", "Re-check a run from the ledger and the relays' blobs alone.", examples=EXAMPLES
    )
    parser.add_argument("run", nargs="?", metavar="RUN", help="join string of the run, or a file that holds it")
    add_run_flags(parser)
    parser.add_argument(
        "--sample", type=float, default=0.0, metavar="SHARE", help="share of rollouts to verify again, with the model"
    )
    parser.add_argument(
        "--seed", help="text that determines the sample, to draw the same again (default: a fresh sample)"
    )
    parser.add_argument("--json", action="store_true", help="the result as JSON")
    options = parser.parse_args(words)
    if not 0 <= options.sample <= 1:
        parser.error(f"--sample {options.sample}: a share from 0 to 1 is meant")
    options.join = options.join or options.run
    return asyncio.run(_audit(options, quiet_config(options)))


async def _audit(options: argparse.Namespace, config: NodeConfig) -> int:
    from node.audit import AuditFailed, audit_run
    from node.visitor import visit_run

    seed = options.seed or secrets.token_hex(8)
    async with visit_run(config) as visit:
        with tempfile.TemporaryDirectory(prefix="intellect-audit-") as folder:
            sample = None
            if options.sample:
                await _fetch_data_sets(visit, Path(folder))
                sample = _sample(options.sample, seed, config, visit.spec, home=Path(folder))
            try:
                report = await audit_run(
                    visit.spec, ledger=visit.ledger, relays=visit.relays, home=Path(folder), sample=sample
                )
            except AuditFailed as failure:
                _print_failure(failure.what, failure.why, run=visit.spec.run_id, as_json=options.json)
                return 1
    _print(report, seed=seed if options.sample else None, as_json=options.json)
    return INCOMPLETE if report.missing else 0


async def _fetch_data_sets(visit: Visit, home: Path) -> None:
    """Fetch the data sets needed to score the rollouts again. Raises ConfigError when no relay has them."""
    from node.data_sets import digests_of, find_data_sets

    try:
        async with asyncio.timeout(DATA_SET_SECONDS):
            await find_data_sets(
                visit.spec, home=home, beside=None, get=lambda digest, most: visit.relays.get(digest, limit=most)
            )
    except TimeoutError as error:
        names = ", ".join(digests_of(visit.spec))
        raise ConfigError(
            f"no relay has the data sets of this run ({names}): its rollouts cannot be scored again"
        ) from error


def _sample(share: float, seed: str, config: NodeConfig, spec: RunSpec, *, home: Path) -> Sample:
    from node.audit.rollouts import Sample
    from node.data_sets import load_run_tasks
    from node.engines import engine_of

    return Sample(share, seed, lambda: engine_of(config, spec.model), lambda: load_run_tasks(spec, home))


def _print_failure(what: str, why: str, *, run: str, as_json: bool) -> None:
    if as_json:
        print_line(json.dumps({"run": run, "holds": False, "failed": what, "why": why}, indent=2))
    else:
        print_line(f"run {run}\nDOES NOT HOLD: {what}: {why}")


def _print(report: Report, *, seed: str | None, as_json: bool) -> None:
    from node.audit.report import NOT_RECORDED

    if as_json:
        fields = {
            "run": report.run,
            "holds": True,
            "checked": dict(report.checked),
            "missing": report.missing,
            "not_recorded": list(NOT_RECORDED),
            "sample_seed": seed,
        }
        print_line(json.dumps(fields, indent=2))
        return
    print_line(f"run {report.run}")
    for what, count in report.checked.items():
        print_line(f"  holds: {count} {what}")
    for line in condensed(report.missing):
        print_line(f"  not checked: {line}")
    for line in NOT_RECORDED:
        print_line(f"  not recorded: {line}")
    if seed is not None:
        print_line(f"sample drawn by --seed {seed}")
    lacks = "nothing is wrong, but not everything could be checked: only a relay with --archive keeps all records"
    print_line(lacks if report.missing else "everything holds")


def condensed(lines: Sequence[str]) -> list[str]:
    """Merge consecutive lines that differ only in the checkpoint's number into one line each."""
    ranges: list[tuple[str, int, int, str]] = []
    for line in lines:
        found = _OF_CHECKPOINT.match(line)
        before, number, after = (found[1], int(found[2]), found[3]) if found else (line, -1, "")
        last = ranges[-1] if ranges else None
        if found and last is not None and (last[0], last[2], last[3]) == (before, number - 1, after):
            ranges[-1] = (before, last[1], number, after)
        else:
            ranges.append((before, number, number, after))
    return [_said(*each) for each in ranges]


def _said(before: str, first: int, last: int, after: str) -> str:
    if first < 0:
        return before
    return f"{before} {first}{after}" if first == last else f"{before}s {first} to {last}{after}"
