"""`intellect-node contributions`: what a wallet or node has earned, final and not yet final."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

from node.cli import Parser, print_line
from node.commands.reading import add_run_flags, quiet_config

if TYPE_CHECKING:
    from node.config import NodeConfig
    from node.contributions import Contributions

EXAMPLES = """\
  intellect-node contributions --join run.join                     everybody's
  intellect-node contributions --join run.join --wallet 0x..       one wallet's, with what only claims it
  intellect-node contributions --join run.join --node 12D3.. --json
"""


def main(words: Sequence[str]) -> int:
    """Run the command."""
    parser = Parser(
        "intellect-node contributions", "What a wallet or node has earned: verified tokens.", examples=EXAMPLES
    )
    add_run_flags(parser)
    parser.add_argument("--wallet", help="only this wallet's (0x..)")
    parser.add_argument("--node", help="only this node's")
    parser.add_argument("--json", action="store_true", help="as JSON")
    options = parser.parse_args(words)
    if options.wallet:
        from ledger.wallet import checked_address

        options.wallet = checked_address(options.wallet)
    found = asyncio.run(_read(quiet_config(options)))
    rows = _rows(found, wallet=options.wallet, node=options.node)
    if options.json:
        print_line(json.dumps(rows, indent=2))
        return 0
    _print(found, rows)
    return 0


async def _read(config: NodeConfig) -> Contributions:
    from node.contributions import read_contributions
    from node.visitor import visit_run
    from roles.tally import MAX_BLOB

    async with visit_run(config) as visit:

        async def get(digest: str) -> bytes:
            return await visit.relays.get(digest, limit=MAX_BLOB)

        return await read_contributions(visit.spec, ledger=visit.ledger, get=get, directory=visit.directory)


def _rows(found: Contributions, *, wallet: str | None, node: str | None) -> list[dict[str, object]]:
    """One entry for each (node, wallet) that the question is about."""
    rows: list[dict[str, object]] = []
    for owner in sorted({**found.final, **found.pending}, key=lambda owner: (owner[1] or "", owner[0])):
        claimed = found.claims.get(owner[0])
        if (wallet and wallet not in (owner[1], claimed)) or (node and node != owner[0]):
            continue
        rows.append(
            {
                "node": owner[0],
                "wallet": owner[1],
                "claimed": None if owner[1] else claimed,
                "final": found.final.get(owner, 0),
                "pending": found.pending.get(owner, 0),
            }
        )
    return rows


def _print(found: Contributions, rows: Sequence[dict[str, object]]) -> None:
    if found.root is None:
        print_line("no epoch is final yet; what follows is accepted by a quorum of validators but not on the ledger")
    else:
        tokens = sum(found.final.values())
        print_line(f"final up to epoch {found.root.epoch}, root {found.root.root[:16]}.., {tokens} tokens in all")
    if not rows:
        print_line("nothing was credited so far")
        return
    print_line(f"{'wallet':44} {'final':>10} {'pending':>10}  node")
    for row in rows:
        name = row["wallet"] or (f"{row['claimed']} *" if row["claimed"] else "-")
        print_line(f"{name:44} {row['final']:>10} {row['pending']:>10}  {row['node']}")
    if any(row["claimed"] for row in rows):
        print_line("* claimed by the node, not linked by the wallet: becomes its own once the wallet has signed")
