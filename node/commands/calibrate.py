"""`intellect-node calibrate`: measures how much honest nodes differ, and writes the tightest
thresholds into a run's draft."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from node.parsing import Parser, print_line

if TYPE_CHECKING:
    import argparse

    from node.calibration.environments import Environment
    from node.calibration.report import Rates
    from roles.spec import RunSpec

EXAMPLES = """\
  intellect-node calibrate CHECKPOINT --spec run.toml                 measure, then write the thresholds into run.toml
  intellect-node calibrate CHECKPOINT --spec run.toml --out new.toml --submissions 200 --one-in 10000
  intellect-node calibrate CHECKPOINT --spec run.toml --also h100.observations --also mi300.observations
  intellect-node calibrate CHECKPOINT --spec run.toml --quick --json

Generates honest submissions of the draft's shape with each kernel, batch size and number of threads, and judges them as a
validator does. A killed command continues where it was. The figures are worth most on machines like those that will take part.
"""
SUBMISSIONS, QUICK_SUBMISSIONS = 40, 6


def main(words: Sequence[str]) -> int:
    """Run the command."""
    parser = Parser(
        "intellect-node calibrate", "Measure honest noise and set a run's thresholds by it.", examples=EXAMPLES
    )
    parser.add_argument("checkpoint", type=Path, help="folder with config.json, tokenizer and *.safetensors")
    parser.add_argument("--spec", type=Path, required=True, help="the run's draft (TOML)")
    parser.add_argument(
        "--out", type=Path, help="where to write the draft with thresholds (default: the file named by --spec)"
    )
    parser.add_argument(
        "--submissions", type=int, help=f"honest submissions to make in each environment (default: {SUBMISSIONS})"
    )
    parser.add_argument(
        "--one-in", type=int, default=1000, help="one honest submission in so many may be refused (softly)"
    )
    parser.add_argument(
        "--nodes-one-in", type=int, default=1000, help="one honest node in so many may be refused in a month"
    )
    parser.add_argument("--month", type=int, default=3000, help="submissions that a node makes in a month")
    parser.add_argument("--environments", help="only these environments, such as pinned,alone,eager (default: all)")
    parser.add_argument("--device", default="cpu", help="cpu, cuda or cuda:0 and so on")
    parser.add_argument("--seed", type=int, default=0, help="seed of the sampling")
    parser.add_argument("--keep", type=Path, help="file for what is measured (default: beside the draft)")
    parser.add_argument(
        "--also",
        type=Path,
        action="append",
        default=[],
        help="a file that --keep wrote on another machine, may be repeated",
    )
    parser.add_argument(
        "--quick", action="store_true", help="few submissions in few environments: fast, but wider thresholds"
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
    """The draft as a spec. Operators and ledger, which do not matter here, are made up where it names none."""
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
    from node.calibration.collecting import Kept
    from node.calibration.environments import chosen, environments_for
    from node.calibration.measuring import collect, plan_of
    from node.calibration.report import Format, report_of
    from roles.toploc.encoding import ENCODINGS

    rows = spec.sampling.groups_per_submission * spec.sampling.group_size
    environments = chosen(environments_for(spec.model, rows=rows), options.environments, quick=options.quick)
    plan = plan_of(options, spec)
    kept = Kept(options.keep or options.spec.with_name(f"{options.spec.name}.observations"), plan.name, options.device)
    others = {path.name: Kept(path, plan.name, None) for path in options.also}
    collect(options, spec, plan, kept, environments)
    held = {each.name: kept.of(each.name, options.submissions) for each in environments}
    for name, other in others.items():
        held |= {f"{each.name} of {name}": other.of(each.name) for each in environments if other.of(each.name)}
    shown = {name: some for name, some in held.items() if name.split(" of ")[0] in _shown(environments)}
    fitted = {name: some for name, some in held.items() if name not in shown}
    return report_of(
        fitted, shown, _rates(options), Format(spec.checks.topk, ENCODINGS[spec.model.dtype].mantissa_bits)
    )


def _shown(environments: list[Environment]) -> set[str]:
    from node.errors import ConfigError

    if not any(each.fitted for each in environments):
        raise ConfigError(
            "nothing to fit: another dtype than the run's is only shown; name others by --environments too"
        )
    return {each.name for each in environments if not each.fitted}


def _rates(options: argparse.Namespace) -> Rates:
    from node.calibration.report import Rates

    return Rates(options.one_in, options.nodes_one_in, options.month)


def _write(options: argparse.Namespace, out: Path, report: dict[str, Any]) -> None:
    from node.calibration.drafts import write_checks

    fitted = [name for name, row in report["environments"].items() if row["fitted"]]
    note = f"{report['fit']['submissions']} honest submissions ({', '.join(fitted)}); one in {options.one_in} refused"
    write_checks(options.spec.expanduser(), out, report["checks"], note=note)
