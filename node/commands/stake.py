"""`intellect-node stake`: stake coins on a node, or list its stakes."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

from node.commands.reading import add_json_flag, add_paying_flags, add_run_flags, answer, quiet_config
from node.parsing import Parser

if TYPE_CHECKING:
    from ledger.records import Stake
    from node.purse import Purse

EXAMPLES = """\
  intellect-node stake 0.5eth --node 12D3.. --join RUN --operator-key wallet.json     of this account, behind that node
  intellect-node stake 0.5eth --node 12D3.. --wallet 0x.. --join RUN --operator-key k for a wallet that has it back
  intellect-node stake --join RUN                                                      who has staked what
"""


def main(words: Sequence[str]) -> int:
    """Run the command."""
    parser = Parser(
        "intellect-node stake", "Put coins behind a node, or show what stands behind whom.", examples=EXAMPLES
    )
    parser.add_argument("amount", nargs="?", help="how much: in base units, or with a unit (0.5eth)")
    parser.add_argument("--node", help="id of the node to put it behind; without an amount: show only its stakes")
    parser.add_argument("--wallet", help="the wallet that may unbond and is paid back (default: the account that pays)")
    add_run_flags(parser)
    add_paying_flags(parser)
    add_json_flag(parser)
    options = parser.parse_args(words)
    return asyncio.run(_stake(options) if options.amount else _show(options))


async def _stake(options: argparse.Namespace) -> int:
    from node.amounts import parse_amount, show_amount
    from node.errors import UsageError
    from node.purse import must_pay, open_purse
    from node.refusals import explained
    from node.registration import given_address

    amount = parse_amount(options.amount)
    if not options.node:
        raise UsageError("name the node: --node 12D3..")
    async with open_purse(quiet_config(options)) as purse:
        wallet = given_address(options.wallet) if options.wallet else must_pay(purse)
        must_pay(purse)
        with explained():
            await purse.ledger.stake(options.node, wallet, amount)
        held = (await purse.ledger.stakes())[(options.node, wallet)]
    token = purse.spec.rewards.token
    shown = f"{show_amount(held.amount, token)} of {wallet} now stand behind {options.node}"
    return answer(options, stake_fields(held), f"staked {show_amount(amount, token)}; {shown}")


async def _show(options: argparse.Namespace) -> int:
    from node.purse import open_purse

    async with open_purse(quiet_config(options)) as purse:
        held = [each for each in (await purse.ledger.stakes()).values() if options.node in (None, each.node)]
        lines = [stake_line(purse, each) for each in sorted(held, key=lambda each: -each.amount)]
    rows = [stake_fields(each) for each in held]
    return answer(options, {"stakes": rows}, *(lines or ["nobody has staked anything"]))


def stake_fields(stake: Stake) -> dict[str, object]:
    """Fields for JSON. Amounts are text, since they may exceed a program's integers."""
    return {
        "node": stake.node,
        "wallet": stake.wallet,
        "amount": str(stake.amount),
        "unbond_at": stake.unbond_at or None,
    }


def stake_line(purse: Purse, stake: Stake) -> str:
    """One line for people."""
    from node.amounts import show_amount
    from node.commands.reading import show_time

    state = f"free from {show_time(stake.unbond_at)}" if stake.unbond_at else "bonded"
    return f"{stake.node}  {stake.wallet}  {show_amount(stake.amount, purse.spec.rewards.token):>24}  {state}"
