"""`intellect-node calibrate`: how much honest nodes differ, and the tightest thresholds that follow, put into a run's draft."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from node.parsing import Parser, print_line

if TYPE_CHECKING:
    import argparse

    from node.calibration.collecting import Kept, Plan
    from node.calibration.environments import Environment
    from node.calibration.report import Rates
    from roles.inference.engine import Engine
    from roles.spec import RunSpec

EXAMPLES = """\
  intellect-node calibrate CHECKPOINT --spec run.toml                 measure, then write the thresholds into run.toml
  intellect-node calibrate CHECKPOINT --spec run.toml --out new.toml --submissions 200 --one-in 10000
  intellect-node calibrate CHECKPOINT --spec run.toml --quick --json

Generates honest submissions of the draft's shape with each kernel, batch size and number of threads, and judges them as a
validator does. A killed one goes on where it was. On the machines that will take part the figures are worth most.
"""
SUBMISSIONS, QUICK_SUBMISSIONS = 40, 6


def main(words: Sequence[str]) -> int:
    """Run the command."""
    parser = Parser(
        "intellect-node calibrate", "Measure honest noise and set a run's thresholds by it.", examples=EXAMPLES
    )
    parser.add_argument("checkpoint", type=Path, help="folder with config.json, tokenizer and *.safetensors")
    parser.add_argument("--spec", type=Path, required=True, help="the run's draft (TOML)")
    parser.add_argument("--out", type=Path, help="where to write it with thresholds (default: --spec itself)")
    parser.add_argument("--submissions", type=int, help=f"in each environment (default: {SUBMISSIONS})")
    parser.add_argument(
        "--one-in", type=int, default=1000, help="honest submissions of which one may be refused, softly"
    )
    parser.add_argument(
        "--nodes-one-in", type=int, default=1000, help="honest nodes of which one may be refused in a month"
    )
    parser.add_argument("--month", type=int, default=3000, help="submissions of a node in a month")
    parser.add_argument("--environments", help="only these, such as pinned,alone,eager (default: all)")
    parser.add_argument("--device", default="cpu", help="cpu, cuda or cuda:0 and so on")
    parser.add_argument("--seed", type=int, default=0, help="other seeds draw other samples")
    parser.add_argument("--keep", type=Path, help="file for what is measured (default: beside the draft)")
    parser.add_argument(
        "--quick", action="store_true", help="few submissions of few environments: wide thresholds, soon"
    )
    parser.add_argument("--json", action="store_true", help="the figures as JSON")
    options = parser.parse_args(words)
    _check_numbers(options)
    spec = _spec(options)
    report = _measure(options, spec)
    out = (options.out or options.spec).expanduser()
    _write(options, out, report)
    if options.json:
        print_line(json.dumps(report, indent=2))
        return 0
    from node.calibration.report import say

    print_line(f"{say(report)}\nwritten to {out}")
    return 0


def _check_numbers(options: argparse.Namespace) -> None:
    from node.errors import UsageError

    options.submissions = options.submissions or (QUICK_SUBMISSIONS if options.quick else SUBMISSIONS)
    if options.submissions < 2 or options.month < 1 or not 5 <= options.one_in <= 5 * 10**11:
        raise UsageError("at least 2 --submissions, 1 for --month, and --one-in from 5 to 500000000000")
    if not 0 <= options.nodes_one_in <= 10**9:
        raise UsageError("--nodes-one-in is from 0 (histories are not judged) to 1000000000")


def _spec(options: argparse.Namespace) -> RunSpec:
    """The draft completed as far as it matters here: operators and a ledger are made up where it names none."""
    from dht.identity import NodeKey
    from ledger.records import Operator
    from node.run_creation import NOWHERE, build_spec, read_draft

    draft = read_draft(options.spec)
    nobody = [Operator(NodeKey(bytes(32)).node, NOWHERE.contract, NOWHERE.contract)]
    if "validators" not in draft:
        draft["quorum"] = 1
    return build_spec(
        draft,
        model=options.checkpoint.expanduser(),
        place=NOWHERE,
        validators=[] if "validators" in draft else nobody,
        trainers=[] if "trainers" in draft else nobody,
    )


def _measure(options: argparse.Namespace, spec: RunSpec) -> dict[str, Any]:
    from node.calibration.environments import chosen, environments_for
    from node.calibration.report import Format, report_of
    from node.errors import ConfigError
    from roles.toploc.encoding import ENCODINGS

    sampling = spec.sampling
    rows = sampling.groups_per_submission * sampling.group_size
    environments = chosen(environments_for(spec.model, rows=rows), options.environments, quick=options.quick)
    kept = _collect(options, spec, environments)
    held = {
        each.name: [observation for _, observation in sorted(kept.table.get(each.name, {}).items())][
            : options.submissions
        ]
        for each in environments
    }
    fitted = {each.name: held[each.name] for each in environments if each.fitted}
    shown = {each.name: held[each.name] for each in environments if not each.fitted}
    if not fitted:
        raise ConfigError(
            "nothing to fit: another dtype than the run's is only shown; name others by --environments too"
        )
    form = Format(spec.checks.topk, ENCODINGS[spec.model.dtype].mantissa_bits)
    return report_of(fitted, shown, _rates(options), form)


def _collect(options: argparse.Namespace, spec: RunSpec, environments: list[Environment]) -> Kept:
    from node.calibration.collecting import Collector, Kept
    from node.calibration.environments import environments_for
    from node.terminal import Terminal
    from roles.toploc.encoding import ENCODINGS

    screen, plan = Terminal(sys.stderr), _plan(options, spec)
    kept = Kept(options.keep or options.spec.with_name(f"{options.spec.name}.observations"), plan.name)
    total = plan.submissions * len(environments)

    def said(name: str, done: int, left: float) -> None:
        screen.progress(f"calibrate: {done} of {total} submissions, {name}" + (f", {left:.0f} s left" if left else ""))

    pinned = environments_for(spec.model, rows=1)[0]
    collector = Collector(
        plan=plan,
        kept=kept,
        build=lambda environment: _engine(options, spec, environment),
        validator=_engine(options, spec, pinned),
        pinned=pinned.build,
        dtype=ENCODINGS[spec.model.dtype].dtype,
        said=said,
    )
    collector.collect(environments)
    screen.line(f"{total} submissions measured")
    return kept


def _plan(options: argparse.Namespace, spec: RunSpec) -> Plan:
    from dht.encoding import digest, encode
    from node.calibration.collecting import Plan
    from node.evaluation.setting import weights_digest
    from roles.tasks.asking import Asking

    parts = (spec.model, *spec.tasks, spec.sampling, *([spec.length] if spec.length else []))
    name = digest(
        "calibration/1",
        weights_digest(options.checkpoint),
        *(encode(part) for part in parts),
        spec.checks.topk,
        spec.checks.chunk,
        options.seed,
        options.device,
    )
    return Plan(
        name, spec.sampling, spec.checks, Asking(_task(options, spec), spec.length), options.submissions, options.seed
    )


def _task(options: argparse.Namespace, spec: RunSpec) -> Any:
    from node.data_sets import place_data_set
    from node.errors import ConfigError
    from node.run_creation import read_draft
    from roles.tasks import TaskError, load_tasks

    with tempfile.TemporaryDirectory() as folder:  # a task is read whole, and needs its file no more
        for task in read_draft(options.spec).get("tasks", []):
            if "file" in task:
                place_data_set(Path(str(task["file"])), Path(folder))
        try:
            return load_tasks(spec.tasks, Path(folder))
        except TaskError as error:
            raise ConfigError(str(error)) from error


def _engine(options: argparse.Namespace, spec: RunSpec, environment: Environment) -> Engine:
    from node.engines import build_engine
    from node.errors import ConfigError
    from roles.inference.errors import BadCheckpoint

    engine = build_engine(
        options.device, dtype=environment.dtype, attention=environment.attention, chat=spec.model.chat
    )
    try:
        engine.load(options.checkpoint.expanduser())
    except BadCheckpoint as error:
        raise ConfigError(str(error)) from error
    return engine


def _rates(options: argparse.Namespace) -> Rates:
    from node.calibration.report import Rates

    return Rates(options.one_in, options.nodes_one_in, options.month)


def _write(options: argparse.Namespace, out: Path, report: dict[str, Any]) -> None:
    from node.calibration.drafts import write_checks

    fitted = [name for name, row in report["environments"].items() if row["fitted"]]
    note = f"{report['fit']['submissions']} honest submissions ({', '.join(fitted)}); one in {options.one_in} refused"
    write_checks(options.spec.expanduser(), out, report["checks"], note=note)
