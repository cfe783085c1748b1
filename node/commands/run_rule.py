"""The part of `intellect-node run` that manages a run's money, its validators and pausing."""

from __future__ import annotations

import argparse
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from node.commands.reading import answer, show_time

if TYPE_CHECKING:
    from ledger.records import Operator
    from node.config import NodeConfig
    from node.purse import Purse


async def rule(options: argparse.Namespace) -> int:
    """Carry out `run fund`, `pause`, `reclaim` or `validators`."""
    from node.errors import UsageError
    from node.purse import open_purse
    from node.refusals import explained

    actions: dict[str, Callable[[Purse, argparse.Namespace], Awaitable[int]]] = {
        "fund": _fund,
        "pause": _pause,
        "reclaim": _reclaim,
        "validators show": _show_validators,
        "validators propose": _propose,
        "validators apply": _apply,
    }
    name = f"validators {options.what or 'show'}" if options.action == "validators" else str(options.action)
    if name not in actions:
        raise UsageError("run validators show|propose|apply is meant")
    async with open_purse(config_of(options)) as purse:
        with explained():
            return await actions[name](purse, options)


def config_of(options: argparse.Namespace, *, key: bool = True) -> NodeConfig:
    """The settings that a command names; without `key`, no account. Raises UsageError, ConfigError."""
    from node.errors import UsageError
    from node.sources import load_config

    if not options.join and not options.spec.exists():
        raise UsageError(
            f"which run? --join with its join string, or --spec with its spec ({options.spec} is not there)"
        )
    flags = {
        "role": "worker",
        "join": options.join,
        "spec": None if options.join else options.spec,
        "operator_key": options.key if key else None,
        "operator_password_file": options.operator_password_file if key else None,
        "data": options.data,
        **{name: tuple(getattr(options, name) or ()) or None for name in ("rpc", "peer", "relay")},
    }
    return load_config(file=None, environment={}, flags=flags)


async def _fund(purse: Purse, options: argparse.Namespace) -> int:
    from node.amounts import parse_amount, show_amount
    from node.purse import must_pay

    token, ledger = purse.spec.rewards.token, purse.ledger
    if options.what is not None:
        amount = parse_amount(options.what)
        must_pay(purse)
        await ledger.fund(amount)
    roots = await ledger.final_roots()
    funds, promised = await ledger.funds_at(), roots[-1].amount if roots else 0
    paid = sum((await ledger.paid()).values())
    shown = {"funds": funds, "promised": promised, "paid": paid, "budget": int(purse.spec.rewards.budget)}
    return answer(
        options,
        {"token": token, **{name: str(value) for name, value in shown.items()}},
        f"funded    {show_amount(funds, token)}",
        f"promised  {show_amount(promised, token)} to contributors by final roots",
        f"paid      {show_amount(paid, token)} of that",
        f"budget    {show_amount(shown['budget'], token)} an epoch",
    )


async def _pause(purse: Purse, options: argparse.Namespace) -> int:
    from ledger.errors import LedgerRejected
    from node.errors import UsageError
    from node.purse import must_pay

    if options.what not in ("on", "off"):
        raise UsageError("run pause on, or run pause off")
    account, owner = must_pay(purse), (await purse.ledger.terms()).owner
    if account.lower() != owner.lower():  # if the run is in that state already, the contract would not be asked
        raise LedgerRejected("not the owner")
    await purse.ledger.pause(options.what == "on")
    state = "stopped: no commits, registrations, stakes, strikes or tallies" if options.what == "on" else "going on"
    return answer(options, {"paused": options.what == "on"}, f"the run is {state}")


async def _reclaim(purse: Purse, options: argparse.Namespace) -> int:
    from node.amounts import show_amount
    from node.errors import UsageError
    from node.purse import must_pay
    from node.registration import given_address

    if not options.what:
        raise UsageError("to whom? run reclaim 0x..")
    to = given_address(options.what)
    must_pay(purse)
    before = await purse.ledger.funds_at()
    await purse.ledger.reclaim(to)
    amount = before - await purse.ledger.funds_at()
    shown = show_amount(amount, purse.spec.rewards.token)
    return answer(options, {"to": to, "amount": str(amount)}, f"{shown} that nobody earned went to {to}")


async def _show_validators(purse: Purse, options: argparse.Namespace) -> int:
    held, waiting = await purse.ledger.validators_at(), await purse.ledger.waiting_validators()
    lines = [f"set {held.number}, quorum {held.quorum}", *map(_line, held.validators)]
    fields: dict[str, object] = {
        "number": held.number,
        "quorum": held.quorum,
        "validators": [_fields(each) for each in held.validators],
        "waiting": None,
    }
    if waiting is not None:
        apply_at = show_time(waiting.apply_at)
        lines += [f"announced: set {waiting.number}, quorum {waiting.quorum}, from {apply_at} on"]
        lines += [_line(each) for each in waiting.validators]
        fields["waiting"] = {
            "number": waiting.number,
            "quorum": waiting.quorum,
            "apply_at": waiting.apply_at,
            "validators": [_fields(each) for each in waiting.validators],
        }
    return answer(options, fields, *lines)


async def _propose(purse: Purse, options: argparse.Namespace) -> int:
    from node.errors import UsageError
    from node.purse import must_pay

    if options.file is None:
        raise UsageError("run validators propose needs a file: TOML with quorum and [[validators]]")
    validators, quorum = _read_set(options.file)
    must_pay(purse)
    await purse.ledger.propose_validators(validators, quorum)
    return await _show_validators(purse, options)


async def _apply(purse: Purse, options: argparse.Namespace) -> int:
    from node.purse import must_pay

    must_pay(purse)
    await purse.ledger.apply_validators()
    return await _show_validators(purse, options)


def _read_set(path: Path) -> tuple[Sequence[Operator], int]:
    from pydantic import ValidationError

    from node.errors import ConfigError
    from node.run_creation import read_draft
    from roles.run_terms import operators_of
    from roles.spec import OperatorSpec

    table = read_draft(path)
    quorum, listed = table.get("quorum"), table.get("validators")
    if not isinstance(quorum, int) or not isinstance(listed, list) or not listed:
        raise ConfigError(f"{path} must hold quorum = .. and [[validators]] with node, operator and payout")
    try:
        return operators_of([OperatorSpec.model_validate(each) for each in listed]), quorum
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        raise ConfigError(f"{path}: validators.{'.'.join(map(str, first['loc']))}: {first['msg']}") from error


def _line(operator: Operator) -> str:
    return f"  {operator.node}  operator {operator.operator}  payout {operator.payout}"


def _fields(operator: Operator) -> dict[str, str]:
    return {"node": operator.node, "operator": operator.operator, "payout": operator.payout}
