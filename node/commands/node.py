"""`intellect-node --role ..`: runs one node until its run has ended or it is told to stop."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from node.cli import report
from node.defaults import SHUTDOWN_SECONDS
from node.parsing import Parser

if TYPE_CHECKING:
    from node.app import Build
    from node.config import NodeConfig
    from node.log import EventStream

EXAMPLES = """\
  intellect-node --role worker --join 'intellect://RUN?peer=..&rpc=..' --wallet 0x..
  intellect-node --role worker --join run.join --data ./my-worker --wallet wallet.key
  intellect-node --role validator --config validator.toml
  INTELLECT_NODE_RPC=http://127.0.0.1:8545 intellect-node --role worker --join run.join

A join string comes from the run's operator. Settings: flag, else INTELLECT_NODE_<NAME>, else --config, else the default.
"""


def main(words: Sequence[str]) -> int:
    """Run the node."""
    return run_configured(_read_config(words))


def run_configured(config: NodeConfig, *, build: Build | None = None) -> int:
    """Run a node from its settings, with logging. `build` may make an actor other than the role's own."""
    from dht.disk import make_folder
    from node.disk import is_disk_full, share_of_events
    from node.errors import ConfigError, UsageError
    from node.log import EventStream, configure_logging
    from node.running import leave

    home = config.home
    try:
        make_folder(home)
        events = EventStream(home / "events.jsonl", limit=share_of_events(config.max_disk))
    except OSError as error:
        kind = ConfigError if is_disk_full(error) else UsageError
        raise kind(f"cannot write to the data folder {home}: {error.strerror}; choose another by --data") from error
    os.environ["INTELLECT_NODE_DATA"] = str(home)  # where unexpected errors are written
    configure_logging(
        events=events,
        terminal=sys.stderr,
        level=config.log_level,
        library_log=home / "node.log",
        bound={"role": config.role},
    )
    try:
        code = asyncio.run(_run(config, events, build))
    except Exception as error:  # print it now: model work in progress would delay the process's exit
        code = report(error)
    finally:
        events.close()
    return leave(code)


async def _run(config: NodeConfig, events: EventStream, build: Build | None) -> int:
    from node.app import Node
    from node.running import stop_on_signals, until_stopped

    async with stop_on_signals() as stop:
        has_ended = await until_stopped(Node(config, events, build=build).run(), stop, seconds=SHUTDOWN_SECONDS)
        return 130 if stop.was_interrupt and not has_ended else 0


def _read_config(words: Sequence[str]) -> NodeConfig:
    from node.commands.settings import add_setting_flags, read_settings

    parser = Parser(
        "intellect-node",
        "Run one node of a training run, until the run has ended or Ctrl-C.",
        examples=EXAMPLES,
        usage="intellect-node --role ROLE --join RUN [--wallet WALLET] [any setting below]",
    )
    add_setting_flags(parser)
    return read_settings(parser, words).sources().merge()
