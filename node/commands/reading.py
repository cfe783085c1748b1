"""Flags and settings shared by commands that read a run or move its money, and the format of their output."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import structlog

from node.parsing import Parser, print_line

if TYPE_CHECKING:
    from node.config import NodeConfig


def add_run_flags(parser: argparse.ArgumentParser, only: str = "") -> None:
    """Flags for the run, and where to find it. `only` names the actions that these flags apply to, as in `rotate: `."""
    parser.add_argument("--join", help=f"{only}join string of the run, or a file that holds it")
    parser.add_argument("--config", type=Path, help=f"{only}a node's configuration file, instead of --join")
    parser.add_argument("--rpc", action="append", help=f"{only}URL of a ledger end-point, may be repeated")
    parser.add_argument("--peer", action="append", help=f"{only}multiaddress of a DHT peer, may be repeated")
    parser.add_argument("--relay", action="append", help=f"{only}base URL of a relay, may be repeated")


def add_paying_flags(parser: Parser, only: str = "") -> None:
    """Flags for the account that sends a transaction, and where local knowledge of the run is kept. `--key` names the
    account too, as for `run`, unless the command uses `--key` for a node's key."""
    names = ("--operator-key",) if parser.action_of("--key") else ("--key", "--operator-key")
    parser.add_argument(
        "--spec", type=Path, help=f"{only}file with the run's spec; no peer need be up then, only the ledger"
    )
    parser.add_argument("--data", type=Path, help="a node's data folder (default: ~/.intellect-node)")
    parser.add_argument(
        *names, dest="operator_key", type=Path, help=f"{only}key file of the account that sends this and pays its gas"
    )
    parser.add_argument(
        "--operator-password-file", type=Path, help=f"{only}file with its password, where it is encrypted"
    )


def add_json_flag(parser: argparse.ArgumentParser) -> None:
    """A flag for machine-readable output."""
    parser.add_argument("--json", action="store_true", help="the answer as JSON")


def answer(options: argparse.Namespace, fields: Mapping[str, object], *lines: str) -> int:
    """Print a command's result: JSON if requested, otherwise the lines. Always returns 0."""
    if options.json:
        print_line(json.dumps(fields, indent=2))
    else:
        for line in lines:
            print_line(line)
    return 0


def show_time(seconds: int) -> str:
    """Chain time in human-readable form, in UTC."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def quiet_config(options: argparse.Namespace) -> NodeConfig:
    """Settings for a short visit, with only warnings logged to the terminal. Raises ConfigError."""
    from node.sources import load_config

    quiet_events()
    flags = {"join": options.join, "role": None if options.config else "worker"}
    for name in ("rpc", "peer", "relay"):
        value = getattr(options, name)
        flags[name] = tuple(value) if value else None
    for name in ("spec", "data", "key", "operator_key", "operator_password_file", "wallet", "wallet_password_file"):
        flags[name] = getattr(options, name, None)
    environment = {} if options.join else dict(os.environ)
    return load_config(file=options.config, environment=environment, flags=flags)


def quiet_events() -> None:
    """Log warnings only, so that a command's output is just its result."""
    import logging

    logging.basicConfig(level=logging.CRITICAL)
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR),
        logger_factory=structlog.PrintLoggerFactory(),
    )
