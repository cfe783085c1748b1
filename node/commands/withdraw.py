"""`intellect-node withdraw`: have an unbonded stake paid out."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Sequence

from node.commands.reading import add_json_flag, add_paying_flags, add_run_flags, answer, quiet_config
from node.parsing import Parser

EXAMPLES = """\
  intellect-node withdraw --node 12D3.. --join RUN --operator-key wallet.json    the wallet's own key sends it
"""


def main(words: Sequence[str]) -> int:
    """Run the command."""
    parser = Parser(
        "intellect-node withdraw", "Have a stake paid that was unbonded long enough ago.", examples=EXAMPLES
    )
    parser.add_argument("--node", required=True, help="id of the node it stood behind")
    add_run_flags(parser)
    add_paying_flags(parser)
    add_json_flag(parser)
    return asyncio.run(_withdraw(parser.parse_args(words)))


async def _withdraw(options: argparse.Namespace) -> int:
    from node.amounts import show_amount
    from node.purse import must_pay, open_purse
    from node.refusals import explained

    async with open_purse(quiet_config(options)) as purse:
        wallet = must_pay(purse)
        held = (await purse.ledger.stakes()).get((options.node, wallet))
        with explained():
            await purse.ledger.withdraw(options.node)
    amount = held.amount if held else 0
    fields = {"node": options.node, "wallet": wallet, "amount": str(amount)}
    return answer(options, fields, f"{show_amount(amount, purse.spec.rewards.token)} went to {wallet}")
