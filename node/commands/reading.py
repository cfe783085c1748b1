"""Flags and settings shared by the commands that only read a run."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import TYPE_CHECKING

import structlog

if TYPE_CHECKING:
    from node.config import NodeConfig


def add_run_flags(parser: argparse.ArgumentParser) -> None:
    """Which run, and where to look for it."""
    parser.add_argument("--join", help="join string of the run, or a file that holds it")
    parser.add_argument("--config", type=Path, help="a node's configuration file, instead of --join")
    parser.add_argument("--rpc", action="append", help="URL of a ledger end-point; may be repeated")
    parser.add_argument("--peer", action="append", help="multiaddress of a DHT peer; may be repeated")
    parser.add_argument("--relay", action="append", help="base URL of a relay; may be repeated")


def quiet_config(options: argparse.Namespace) -> NodeConfig:
    """Settings for a visit, with events kept off the terminal but for warnings. Raises ConfigError."""
    from node.config import load_config

    quiet_events()
    flags = {"join": options.join, "role": None if options.config else "worker"}
    for name in ("rpc", "peer", "relay"):
        value = getattr(options, name)
        flags[name] = tuple(value) if value else None
    environment = {} if options.join else dict(os.environ)
    return load_config(file=options.config, environment=environment, flags=flags)


def quiet_events() -> None:
    """Show warnings only: a command's output is its answer."""
    import logging

    logging.basicConfig(level=logging.CRITICAL)
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR),
        logger_factory=structlog.PrintLoggerFactory(),
    )
