"""`intellect-node unbond`: begin to withdraw a stake."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Sequence

from node.commands.reading import add_json_flag, add_paying_flags, add_run_flags, answer, quiet_config, show_time
from node.parsing import Parser

EXAMPLES = """\
  intellect-node unbond --node 12D3.. --join RUN --operator-key wallet.json    the wallet's own key sends it
"""


def main(words: Sequence[str]) -> int:
    """Run the command."""
    parser = Parser(
        "intellect-node unbond",
        "Begin to take a stake back; it stays at risk for the run's unbond_seconds, then `withdraw` pays it.",
        examples=EXAMPLES,
    )
    parser.add_argument("--node", required=True, help="id of the node it stands behind")
    add_run_flags(parser)
    add_paying_flags(parser)
    add_json_flag(parser)
    return asyncio.run(_unbond(parser.parse_args(words)))


async def _unbond(options: argparse.Namespace) -> int:
    from node.amounts import show_amount
    from node.commands.stake import stake_fields
    from node.purse import must_pay, open_purse
    from node.refusals import explained

    async with open_purse(quiet_config(options)) as purse:
        wallet = must_pay(purse)
        with explained():
            await purse.ledger.unbond(options.node)
        held = (await purse.ledger.stakes())[(options.node, wallet)]
    shown = show_amount(held.amount, purse.spec.rewards.token)
    return answer(options, stake_fields(held), f"{shown} can be withdrawn from {show_time(held.unbond_at)}")
