"""`intellect-node claim`: have what a final root grants paid to its wallets."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

from node.commands.reading import add_json_flag, add_paying_flags, add_run_flags, answer, quiet_config
from node.parsing import Parser

if TYPE_CHECKING:
    from ledger.records import Registration
    from node.earnings import Holding
    from node.purse import Purse

EXAMPLES = """\
  intellect-node claim --join RUN --operator-key any.key                  what the key's own address has earned
  intellect-node claim --join RUN --operator-key any.key --wallet 0x..    for another wallet: only it is paid
  intellect-node claim --join RUN --operator-key any.key --node 12D3.. --dry-run
"""


def main(words: Sequence[str]) -> int:
    """Run the command."""
    parser = Parser(
        "intellect-node claim",
        "Have rewards paid. Anyone may send the claim and pay its gas; the money goes to the wallet that earned it. Amounts are "
        "cumulative: one claim covers all epochs before.",
        examples=EXAMPLES,
    )
    parser.add_argument(
        "--wallet", help="whose rewards: address (0x..) or file (default: those of --operator-key's address)"
    )
    parser.add_argument("--node", help="only what this node earned, with any of its keys")
    parser.add_argument("--dry-run", action="store_true", help="show what would be paid, and send nothing")
    add_run_flags(parser)
    add_paying_flags(parser)
    add_json_flag(parser)
    return asyncio.run(_claim(parser.parse_args(words)))


async def _claim(options: argparse.Namespace) -> int:
    from ledger.records import by_any_key
    from node.earnings import read_holdings
    from node.purse import must_pay, open_purse
    from node.refusals import explained
    from roles.tally import MAX_BLOB

    async with open_purse(quiet_config(options), needs_relays=True) as purse:
        relays = purse.relays

        async def get(digest: str) -> bytes:
            return await relays.get(digest, limit=MAX_BLOB) if relays else b""

        wallet = _wallet(options, purse)
        if not options.dry_run:
            must_pay(purse)
        found = await read_holdings(purse.ledger, get)
        held = by_any_key(await purse.ledger.registrations())
        keys = _keys(options.node, held)
        due = [each for each in found.holdings if each.claimable and _is_meant(each, wallet, keys)]
        waiting = _waiting(found.holdings, wallet, keys, held)
        commits = await purse.ledger.commits()
        if not options.dry_run:
            for each in due:
                with explained():
                    await purse.ledger.claim(found.epoch, each.leaf, found.proof_of(each.leaf))
    rows = [
        {"role": each.leaf.role, "node": each.leaf.node, "wallet": each.leaf.wallet, "amount": str(each.claimable)}
        for each in due
    ]
    fields = {"epoch": found.epoch, "sent": not options.dry_run, "claims": rows}
    has_ended = bool(commits) and commits[-1].final
    lines = _lines(due, waiting, token=purse.spec.rewards.token, sent=not options.dry_run, has_ended=has_ended)
    return answer(options, fields, *lines)


def _wallet(options: argparse.Namespace, purse: Purse) -> str | None:
    """The wallet whose rewards are meant; None means every wallet that the named node earned them for."""
    from node.errors import UsageError
    from node.registration import named_address

    if options.wallet:
        return named_address(options.wallet)
    if options.node:
        return None
    if purse.ledger.operator is None:
        raise UsageError("whose rewards? --wallet 0x.., --node 12D3.., or --operator-key with the wallet's own key")
    return purse.ledger.operator


def _lines(due: Sequence[Holding], waiting: int, *, token: str | None, sent: bool, has_ended: bool) -> list[str]:
    from node.amounts import show_amount

    if not due:
        later = f"; {show_amount(waiting, token)} can be claimed in the epoch after the link" if waiting else ""
        return [f"there is nothing to claim{later}" + (", and the run has ended" if waiting and has_ended else "")]
    verb = "went" if sent else "would go"
    return [
        f"{show_amount(each.claimable, token)} {verb} to {each.leaf.wallet} ({each.leaf.role} {each.leaf.node})"
        for each in due
    ]


def _keys(node: str | None, held: Mapping[str, Registration]) -> tuple[str, ...]:
    """Every key that the node has had, given any one of them; empty where no node is named."""
    if node is None:
        return ()
    return held[node].keys if node in held else (node,)


def _waiting(
    holdings: Sequence[Holding], wallet: str | None, keys: Collection[str], held: Mapping[str, Registration]
) -> int:
    """Base units earned before being linked, by the given node or by nodes that claim the
    wallet or are linked to it now."""
    return sum(
        each.leaf.amount
        for each in holdings
        if each.leaf.wallet is None and (each.leaf.node in keys or _claims(held.get(each.leaf.node), wallet))
    )


def _claims(held: Registration | None, wallet: str | None) -> bool:
    return held is not None and wallet is not None and wallet in (held.claimed, held.wallet)


def _is_meant(holding: Holding, wallet: str | None, keys: Collection[str]) -> bool:
    return wallet in (None, holding.leaf.wallet) and (not keys or holding.leaf.node in keys)
