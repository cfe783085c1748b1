"""`intellect-node runs`: the runs of a ledger's contract."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

from node.cli import Parser, print_line

if TYPE_CHECKING:
    import argparse

EXAMPLES = """\
  intellect-node runs --rpc http://127.0.0.1:8545 --contract 0x..
  intellect-node runs --join 'intellect://RUN?peer=..&rpc=..'      the contract of that run
"""


def main(words: Sequence[str]) -> int:
    """Run the command."""
    parser = Parser(
        "intellect-node runs", "List the runs of a ledger's contract, and how far each is.", examples=EXAMPLES
    )
    parser.add_argument("--rpc", action="append", help="URL of a ledger end-point; may be repeated")
    parser.add_argument("--contract", help="address of the contract (0x..)")
    parser.add_argument("--join", help="a join string or node folder's join file, instead of --rpc")
    parser.add_argument("--spec", help="file with a run's spec, instead of --contract")
    options = parser.parse_args(words)
    from node.commands.reading import quiet_events

    quiet_events()
    return asyncio.run(_list(options))


async def _list(options: argparse.Namespace) -> int:
    from ledger.client import LedgerClient

    urls, contract = await _place(options)
    async with await LedgerClient.connect(urls, contract=contract, patience=10.0) as ledger:
        found = await ledger.runs()
        for run in found:
            terms = await ledger.terms(run)
            operators = f"{len(terms.trainers)} trainer, {len(terms.validators)} validators (quorum {terms.quorum})"
            async with await LedgerClient.connect(urls, contract=contract, run=run, patience=10.0) as one:
                commits = await one.commits()
                workers = len(await one.registrations())
            state = (
                "not started" if not commits else f"step {commits[-1].step}{' (ended)' if commits[-1].final else ''}"
            )
            print_line(f"{run}  {state:16} {operators}, {workers} registered nodes, owner {terms.owner}")
    if not found:
        print_line("this contract has no runs yet")
    return 0


async def _place(options: argparse.Namespace) -> tuple[Sequence[str], str]:
    from pathlib import Path

    from node.errors import ConfigError, UsageError
    from node.join import read_join
    from node.joining import read_spec_file

    urls = list(options.rpc or ())
    if options.join:
        urls += read_join(options.join).rpc
    contract = options.contract or (read_spec_file(Path(options.spec)).ledger.contract if options.spec else None)
    if contract is None and options.join:
        contract = await _contract_of_run(options.join, urls)
    if not urls:
        raise UsageError("name the ledger: --rpc URL, or --join with a join string")
    if contract is None:
        raise ConfigError("name the contract: --contract 0x.., or --join with a join string, or --spec FILE")
    return urls, contract


async def _contract_of_run(join: str, urls: Sequence[str]) -> str:
    from node.config import NodeConfig
    from node.visitor import visit_run

    async with visit_run(NodeConfig(role="worker", join=join, rpc=tuple(urls))) as visit:
        return visit.spec.ledger.contract
