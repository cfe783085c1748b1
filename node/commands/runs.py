"""`intellect-node runs`: lists the runs of a ledger's contract with their progress, pay, size and requirements."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from node.parsing import Parser, print_line

if TYPE_CHECKING:
    import argparse

    from node.listing import Listing
    from roles.spec import RunSpec

EXAMPLES = """\
  intellect-node runs --rpc http://127.0.0.1:8545 --contract 0x..
  intellect-node runs --join 'intellect://RUN?peer=..&rpc=..'      the contract of that run, and its model and requirements
  intellect-node runs --join RUN --all --json

Model, tasks and requirements come from a run's spec: they are shown only for the run whose join string (or --spec) is given.
"""


def main(words: Sequence[str]) -> int:
    """Run the command."""
    parser = Parser(
        "intellect-node runs",
        "List the open runs of a ledger's contract: progress, reward, size and requirements.",
        examples=EXAMPLES,
    )
    parser.add_argument("--rpc", action="append", help="URL of a ledger end-point; may be repeated")
    parser.add_argument("--contract", help="address of the contract (0x..)")
    parser.add_argument("--join", help="a join string, or a file that holds one, instead of --rpc")
    parser.add_argument("--spec", help="file with a run's spec, instead of --contract")
    parser.add_argument("--all", action="store_true", help="also runs that have ended")
    parser.add_argument("--json", action="store_true", help="as JSON")
    options = parser.parse_args(words)
    from node.commands.reading import quiet_events

    quiet_events()
    return asyncio.run(_list(options))


async def _list(options: argparse.Namespace) -> int:
    from node.listing import list_runs

    urls, contract, specs = await _place(options)
    found = await list_runs(urls, contract, specs=specs)
    shown = [run for run in found if options.all or run.state != "ended"]
    if options.json:
        print_line(json.dumps([asdict(run) for run in shown], indent=2))
        return 0
    for run in shown:
        for line in format_run(run):
            print_line(line)
    ended = len(found) - len(shown)
    if not found:
        print_line("this contract has no runs yet")
    elif ended:
        print_line(f"{ended} more {'has' if ended == 1 else 'have'} ended (--all)")
    return 0


def format_run(run: Listing) -> list[str]:
    """A run in three lines, or two when its spec is not known."""
    from node.amounts import show_rewards
    from node.terminal import count, format_bytes, plain

    who = f"{count(run.trainers, 'trainer')}, {count(run.validators, 'validator')} (quorum {run.quorum})"
    people = f"{who}, {run.registered} registered"
    state = f"step {run.step}{' (ended)' if run.state == 'ended' else ''}" if run.state != "not started" else run.state
    rewards = show_rewards(run.reward, run.min_stake, run.token)
    lines = [f"{run.run}  {state}", f"  {people}; reward: {rewards}; owner {run.owner}"]
    if run.about is not None:
        about = run.about
        lines.append(
            plain(
                f"  {about.name}: {about.model} ({format_bytes(about.model_bytes)}), {', '.join(about.tasks)}, "
                f"{count(about.steps, 'step')}, at most {about.tokens} tokens; a worker needs: {about.requirements}"
            )
        )
    return lines


async def _place(options: argparse.Namespace) -> tuple[Sequence[str], str, dict[str, RunSpec]]:
    """The ledger's end-points, the contract, and the specs that are known."""
    from node.errors import UsageError
    from node.join import read_join
    from node.joining import read_spec_file

    urls = list(options.rpc or ())
    spec = read_spec_file(Path(options.spec)) if options.spec else None
    if options.join:
        urls += read_join(options.join).rpc
    if options.join and spec is None and not options.contract:
        spec = await _spec_of_run(options.join, urls)
    contract = options.contract or (spec.ledger.contract if spec else None)
    if not urls:
        raise UsageError("name the ledger: --rpc URL, or --join with a join string")
    if contract is None:
        raise UsageError("name the contract: --contract 0x.., or --join with a join string, or --spec FILE")
    return urls, contract, {spec.run_id: spec} if spec else {}


async def _spec_of_run(join: str, urls: Sequence[str]) -> RunSpec:
    from node.config import NodeConfig
    from node.visitor import visit_run

    async with visit_run(NodeConfig(role="worker", join=join, rpc=tuple(urls))) as visit:
        return visit.spec
