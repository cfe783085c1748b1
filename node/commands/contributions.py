"""`intellect-node contributions`: what a wallet or node has earned, per step and in total."""

from __future__ import annotations

import argparse
import asyncio
import csv
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from node.commands.reading import add_json_flag, add_run_flags, quiet_config
from node.parsing import Parser, print_line

if TYPE_CHECKING:
    from ledger.records import Registration
    from node.config import NodeConfig
    from node.earnings import Holdings, StepLine

EXAMPLES = """\
  intellect-node contributions --join run.join                     everybody's
  intellect-node contributions --join run.join --wallet 0x..       one wallet's, and what nodes earned that only claim it
  intellect-node contributions --join run.join --node 12D3.. --steps
  intellect-node contributions --join run.join --wallet 0x.. --proof    the proofs for a claim
  intellect-node contributions --run run.join --csv > run.csv           a line for each step, role and node
"""


@dataclass(frozen=True, slots=True)
class Report:
    """The results. `missing` are final epochs whose tally no relay has any more."""

    run: str
    token: str | None
    found: Holdings
    steps: Sequence[StepLine]
    missing: Sequence[int]
    registrations: Mapping[str, Registration]


def main(words: Sequence[str]) -> int:
    """Run the command."""
    parser = Parser(
        "intellect-node contributions",
        "What a wallet or node has earned: verified tokens and other units, what they are paid, and what was refused.",
        examples=EXAMPLES,
    )
    add_run_flags(parser)
    parser.add_argument("--run", dest="join", help="the same as --join")
    parser.add_argument("--wallet", help="only this wallet's: its address (0x..) or its file")
    parser.add_argument("--node", help="only this node's")
    parser.add_argument("--steps", action="store_true", help="a line for each step, too")
    parser.add_argument("--csv", action="store_true", help="a line for each step, role and node, as CSV")
    parser.add_argument("--proof", action="store_true", help="the Merkle proof of each final amount, as JSON")
    add_json_flag(parser)
    options = parser.parse_args(words)
    if options.wallet:
        from node.registration import named_address

        options.wallet = named_address(options.wallet)
    report = asyncio.run(_read(quiet_config(options)))
    totals, steps = _totals(report, options), [_step(line) for line in report.steps if _is_asked(line, report, options)]
    if options.csv:
        print_line(_csv(steps))
    elif options.proof:
        print_line(json.dumps(_proofs(report, options), indent=2))
    elif options.json:
        root = report.found.root
        head = {"run": report.run, "epoch": root.epoch if root else None, "root": root.root if root else None}
        shown = {**head, "token": report.token, "totals": totals, "steps": steps, "missing_epochs": report.missing}
        print_line(json.dumps(shown, indent=2))
    else:
        _print(report, totals, steps if options.steps else ())
    return 0


async def _read(config: NodeConfig) -> Report:
    from ledger.records import by_any_key
    from node.contributions import pending_rows, tally_blobs
    from node.earnings import StepBook, epoch_finder, read_holdings, read_tallies
    from node.visitor import visit_run

    async with visit_run(config) as visit:
        ledger, get = visit.ledger, tally_blobs(visit.relays)
        found = await read_holdings(ledger, get)
        roots, commits = await ledger.final_roots(), await ledger.commits()
        tallies, missing = await read_tallies(roots, get)
        registrations = by_any_key(await ledger.registrations())
        book = StepBook(visit.spec, registrations)
        for body in tallies:
            book.add_tally(body)
        leaders = {commit.step: (await ledger.lease(commit.block)).leader for commit in commits if commit.step > 0}
        book.add_commits(leaders.items(), epoch_finder(roots, {commit.step: commit.block for commit in commits}))
        rows = await pending_rows(visit.spec, ledger, visit.directory)
        book.add_rows(rows, judges=await ledger.validators_at())
        return Report(visit.spec.run_id, visit.spec.rewards.token, found, book.sorted(), missing, registrations)


def _is_asked(line: StepLine, report: Report, options: argparse.Namespace) -> bool:
    return _is_about(line.node, line.wallet, report, options)


def _is_about(node: str, wallet: str | None, report: Report, options: argparse.Namespace) -> bool:
    held = report.registrations.get(node)
    is_wallet = options.wallet in (None, wallet, _claims(node, wallet, report), _linked(node, wallet, report))
    return is_wallet and options.node in (None, node, *(held.keys if held else ()))


def _totals(report: Report, options: argparse.Namespace) -> list[dict[str, object]]:
    """One entry for each (role, node, wallet) asked about. Amounts are text, since they may be large."""
    rows: dict[tuple[str, str, str | None], dict[str, object]] = {}
    for holding in report.found.holdings:
        leaf = holding.leaf
        money = {"amount": str(leaf.amount), "claimed": str(holding.claimed), "claimable": str(holding.claimable)}
        rows[(leaf.role, leaf.node, leaf.wallet)] = {"units": leaf.units, "pending": 0, "rejected": 0, **money}
    for line in report.steps:
        if line.pending or line.rejected:
            key = (line.role, line.node, line.wallet)
            row = rows.setdefault(
                key, {"units": 0, "pending": 0, "rejected": 0, "amount": "0", "claimed": "0", "claimable": "0"}
            )
            row["pending"], row["rejected"] = _plus(row["pending"], line.pending), _plus(row["rejected"], line.rejected)
    return [
        {
            "role": role,
            "node": node,
            "wallet": wallet,
            "claims": _claims(node, wallet, report),
            "linked": _linked(node, wallet, report),
            **row,
        }
        for (role, node, wallet), row in sorted(rows.items(), key=lambda item: tuple(map(str, item[0])))
        if _is_about(node, wallet, report, options)
    ]


def _plus(first: object, second: int) -> int:
    return int(str(first)) + second


def _claims(node: str, wallet: str | None, report: Report) -> str | None:
    from node.contributions import claimed_wallet

    return None if wallet else claimed_wallet(node, report.registrations)


def _linked(node: str, wallet: str | None, report: Report) -> str | None:
    """The wallet that a node is linked to now, if its units here were counted before it was linked."""
    from node.contributions import linked_wallet

    return None if wallet else linked_wallet(node, report.registrations)


def _step(line: StepLine) -> dict[str, object]:
    return {
        "step": line.step,
        "epoch": line.epoch,
        "role": line.role,
        "node": line.node,
        "wallet": line.wallet,
        "accepted": line.accepted,
        "pending": line.pending,
        "rejected": line.rejected,
        "undecided": line.undecided,
        "reasons": dict(line.reasons),
    }


def _csv(steps: Sequence[dict[str, object]]) -> str:
    text = io.StringIO()
    names = ("step", "epoch", "role", "node", "wallet", "accepted", "pending", "rejected", "undecided", "reasons")
    writer = csv.DictWriter(text, names, lineterminator="\n")
    writer.writeheader()
    for step in steps:
        reasons = step["reasons"]
        words = [f"{name} {count}" for name, count in reasons.items()] if isinstance(reasons, dict) else []
        writer.writerow({**step, "reasons": "; ".join(words)})
    return text.getvalue().rstrip("\n")


def _proofs(report: Report, options: argparse.Namespace) -> list[dict[str, object]]:
    """The arguments of `claim`, so that another program can send it."""
    found, proofs = report.found, []
    for holding in found.holdings:
        leaf = holding.leaf
        if not _is_about(leaf.node, leaf.wallet, report, options):
            continue
        proof = found.proof_of(leaf)
        money = {"units": str(leaf.units), "amount": str(leaf.amount), "claimable": str(holding.claimable)}
        place = {"index": proof.index, "count": proof.count, "siblings": list(proof.siblings)}
        root = {"epoch": found.epoch, "root": found.root.root if found.root else None}
        proofs.append({**root, "role": leaf.role, "node": leaf.node, "wallet": leaf.wallet, **money, **place})
    return proofs


def _print(report: Report, totals: Sequence[dict[str, object]], steps: Sequence[dict[str, object]]) -> None:
    root = report.found.root
    if root is None:
        print_line("no epoch is final yet; what follows is accepted by a quorum of validators but not on the ledger")
    else:
        tokens = sum(each.leaf.units for each in report.found.holdings if each.leaf.role == "worker")
        print_line(f"final up to epoch {root.epoch}, root {root.root[:16]}.., {tokens} tokens in all")
    if report.missing:
        print_line(
            f"no relay has the tallies of epochs {', '.join(map(str, report.missing))}: their steps are left out"
        )
    if not totals:
        print_line("nothing was credited so far")
        return
    _print_totals(report, totals)
    for step in steps:
        _print_step(step)


def _print_totals(report: Report, totals: Sequence[dict[str, object]]) -> None:
    from node.amounts import show_briefly

    is_paid = any(row["amount"] != "0" for row in totals)
    money = f"{'earned':>22} {'claimable':>22} " if is_paid else ""
    print_line(f"{'wallet':44} {'role':9} {'final':>12} {'pending':>10} {'refused':>7} {money} node")
    for row in totals:
        name = row["wallet"] or _stand_in(row)
        amounts = [show_briefly(int(str(row[name])), report.token) for name in ("amount", "claimable")]
        money = "".join(f"{amount:>22} " for amount in amounts) if is_paid else ""
        counts = f"{row['units']:>12} {row['pending']:>10} {row['rejected']:>7}"
        print_line(f"{name:44} {row['role']:9} {counts} {money} {row['node']}")
    if any(row["role"] != "worker" for row in totals):
        print_line(
            "a worker's units are tokens, a validator's are verdicts, a relay's are bytes, a trainer's are steps"
        )
    if any(row["claims"] for row in totals):
        print_line("* claimed by the node, not linked by the wallet: becomes its own once the wallet has signed")
    if any(row["linked"] for row in totals):
        where = ": what is earned here goes to the wallet's own line with the first epoch after it" if is_paid else ""
        print_line(f"+ counted before the node was linked to this wallet{where}")


def _stand_in(row: Mapping[str, object]) -> str:
    """Text shown instead of a wallet for units that were counted while the node had none."""
    if row["linked"]:
        return f"{row['linked']} +"
    return f"{row['claims']} *" if row["claims"] else "-"


def _print_step(step: dict[str, object]) -> None:
    reasons = step["reasons"]
    why = f" ({', '.join(reasons)})" if isinstance(reasons, dict) and reasons else ""
    state = f"epoch {step['epoch']}" if step["epoch"] is not None else "not final"
    parts = [f"{step[name]} {name}" for name in ("accepted", "pending", "rejected", "undecided") if step[name]]
    print_line(f"step {step['step']:>5}  {state:10} {step['role']:9} {', '.join(parts)}{why}  {step['node']}")
