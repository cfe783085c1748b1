"""`intellect-node strike list|dispute|settle`: nodes that a quorum ejected, and their owners' disputes."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from node.commands.reading import add_json_flag, add_paying_flags, add_run_flags, answer, quiet_config, show_time
from node.parsing import Parser

if TYPE_CHECKING:
    from ledger.records import HeldStrike

EXAMPLES = """\
  intellect-node strike list --join RUN                                            who was ejected, and why
  intellect-node strike dispute --node 12D3.. --evidence answer.txt --join RUN --operator-key wallet.json
  intellect-node strike settle --node 12D3.. --join RUN --operator-key any.key      after its time, by anybody

What goes on the ledger is the SHA-256 of the evidence; publish the file where the validators' operators will read it.
"""


def main(words: Sequence[str]) -> int:
    """Run the command."""
    parser = Parser("intellect-node strike", "Strikes of a run: list, answer or close them.", examples=EXAMPLES)
    parser.add_argument("action", choices=("list", "dispute", "settle"))
    parser.add_argument("--node", help="id of the node struck")
    parser.add_argument("--evidence", help="dispute: file with your evidence, or its SHA-256")
    add_run_flags(parser)
    add_paying_flags(parser)
    add_json_flag(parser)
    options = parser.parse_args(words)
    if options.action != "list" and not options.node:
        parser.error(f"strike {options.action} needs --node")
    if options.action == "dispute" and not options.evidence:
        parser.error("strike dispute needs --evidence: a file, or its SHA-256")
    return asyncio.run({"list": _list, "dispute": _dispute, "settle": _settle}[options.action](options))


async def _list(options: argparse.Namespace) -> int:
    from node.purse import open_purse

    async with open_purse(quiet_config(options)) as purse:
        held = [each for each in await purse.ledger.strikes() if options.node in (None, each.strike.node)]
    lines = [_line(each) for each in held]
    return answer(options, {"strikes": [_fields(each) for each in held]}, *(lines or ["no node was struck"]))


async def _dispute(options: argparse.Namespace) -> int:
    from node.purse import must_pay, open_purse
    from node.refusals import explained

    digest = _evidence(options.evidence)
    async with open_purse(quiet_config(options)) as purse:
        must_pay(purse)
        with explained():
            await purse.ledger.dispute(options.node, digest)
        held = _last(await purse.ledger.strikes(), options.node)
    until = show_time(held.until)
    return answer(
        options,
        _fields(held),
        f"the answer {digest} is on the ledger; until {until} a quorum of validators can lift the strike",
    )


async def _settle(options: argparse.Namespace) -> int:
    from node.amounts import show_amount
    from node.purse import must_pay, open_purse
    from node.refusals import explained

    async with open_purse(quiet_config(options)) as purse:
        must_pay(purse)
        with explained():
            await purse.ledger.settle(options.node)
        held = _last(await purse.ledger.strikes(), options.node)
    slashed = show_amount(held.slashed, purse.spec.rewards.token)
    return answer(options, _fields(held), f"the strike is closed: {slashed} of stake went to the run's rewards")


def _last(strikes: Sequence[HeldStrike], node: str) -> HeldStrike:
    return [each for each in strikes if each.strike.node == node][-1]


def _evidence(text: str) -> str:
    """The digest given, or the SHA-256 of the file named."""
    import hashlib
    import re

    from node.errors import ConfigError

    if re.fullmatch(r"(0x)?[0-9a-f]{64}", text):
        return text.removeprefix("0x")
    try:
        with Path(text).expanduser().open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise ConfigError(
            f"{text[:80]!r} is neither a SHA-256 nor a file that can be read: {error.strerror}"
        ) from error


def _line(held: HeldStrike) -> str:
    strike = held.strike
    said = f", answered by {held.counter_evidence[:16]}.." if held.counter_evidence else ""
    until = f" until {show_time(held.until)}" if held.outcome == "open" else ""
    return (
        f"{strike.node}  strike {strike.number}, reason {strike.reason}, evidence {strike.evidence[:16]}..{said}: "
        f"{held.outcome}{until}"
    )


def _fields(held: HeldStrike) -> dict[str, object]:
    strike = held.strike
    return {
        "node": strike.node,
        "wallet": strike.wallet,
        "number": strike.number,
        "reason": strike.reason,
        "evidence": strike.evidence,
        "counter_evidence": held.counter_evidence,
        "outcome": held.outcome,
        "until": held.until,
        "slashed": str(held.slashed),
        "attesters": list(held.attesters),
    }
