"""`intellect-node nodes`: the nodes of a run, their machines, and how well each has done."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from node.cli import ROLES_BY_USE
from node.commands.reading import add_run_flags, quiet_config
from node.parsing import Parser, print_line

if TYPE_CHECKING:
    from node.config import NodeConfig
    from node.participants import Participant

EXAMPLES = """\
  intellect-node nodes --join RUN
  intellect-node nodes --join RUN --role worker
  intellect-node nodes --join RUN --json | jq '.[] | select(.strikes > 0)'

good      of a worker's submissions that were judged, those that a quorum accepted; of a validator's verdicts, those that
          a quorum shared; - where nothing was judged. Only the last ten minutes count: the network keeps rows no longer
strikes   submissions found at fault in that time
final     verified tokens on the ledger; pending: accepted, and not on the ledger yet
since     the ledger's block in which the node was registered
"""


def main(words: Sequence[str]) -> int:
    """Run the command."""
    parser = Parser(
        "intellect-node nodes", "Who takes part in a run, and how well each node has done.", examples=EXAMPLES
    )
    add_run_flags(parser)
    parser.add_argument("--role", choices=ROLES_BY_USE, help="only nodes of this role")
    parser.add_argument("--json", action="store_true", help="everything known of each, as JSON")
    options = parser.parse_args(words)
    participants = asyncio.run(_read(quiet_config(options)))
    shown = [one for one in participants if options.role in (None, one.role)]
    if options.json:
        print_line(json.dumps([asdict(one) for one in shown], indent=2))
    else:
        _print(shown)
    return 0


async def _read(config: NodeConfig) -> list[Participant]:
    from node.participants import read_participants
    from node.visitor import visit_run

    async with visit_run(config) as visit:
        return await read_participants(visit)


def _print(participants: Sequence[Participant]) -> None:
    from node.participants import count_states

    counts = [(count, role) for role, count in count_states(participants).items() if count]
    online = ", ".join(f"{count} {role}{'s' * (count > 1)}" for count, role in counts)
    print_line(f"online: {online or 'nobody'}")
    print_line(
        f"{'role':9} {'node':52} {'state':7} {'good':>11} {'strikes':>7} {'final':>10} {'pending':>8} "
        f"{'since block':>11}  machine"
    )
    for one in participants:
        since = "" if one.since_block is None else str(one.since_block)
        print_line(
            f"{one.role:9} {one.node:52} {one.state:7} {_share(one):>11} {one.strikes:>7} {one.final:>10} "
            f"{one.pending:>8} {since:>11}  {one.hardware}".rstrip()
        )
        if one.reasons:
            print_line(f"{'':9} refused: {', '.join(f'{name} {count}' for name, count in sorted(one.reasons.items()))}")


def _share(one: Participant) -> str:
    return "-" if one.share is None else f"{100 * one.share:.0f}% of {one.judged}"
