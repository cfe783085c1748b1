"""`intellect-node --role ..`: runs one node until its run has ended or it is told to stop."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from node.cli import Parser
from node.defaults import SHUTDOWN_SECONDS

if TYPE_CHECKING:
    import argparse

    from pydantic.fields import FieldInfo

    from node.app import Build
    from node.config import NodeConfig
    from node.log import EventStream

REPEATED = ("rpc", "peer", "relay", "announce")
SWITCHES = ("sponsor",)
GROUPS = {
    "always needed": ("role", "join"),
    "who you are": ("wallet", "wallet_password_file", "key", "data"),
    "finding the run": ("peer", "relay", "rpc", "spec"),
    "being found": ("host", "port", "announce", "http_port", "http_url"),
    "trainers, validators and sponsors": ("operator_key", "model", "sponsor", "sponsor_hourly"),
}
METAVARS = {"role": "ROLE", "join": "RUN", "rpc": "URL", "relay": "URL", "http_url": "URL", "wallet": "WALLET"}
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
    """Run a node from its settings, with its log; `build` may make another actor than the role's own."""
    from node.errors import ConfigError
    from node.log import EventStream, configure_logging, terminal_stream

    home = config.home
    try:
        home.mkdir(parents=True, exist_ok=True)
        events = EventStream(home / "events.jsonl")
    except OSError as error:
        raise ConfigError(
            f"cannot write to the data folder {home}: {error.strerror}; choose another by --data"
        ) from error
    os.environ["INTELLECT_NODE_DATA"] = str(home)  # where an error of the program itself is written
    configure_logging(
        events=events,
        terminal=terminal_stream(),
        level=config.log_level,
        library_log=home / "node.log",
        bound={"role": config.role},
    )
    try:
        code = asyncio.run(_run(config, events, build))
    finally:
        events.close()
    if any(thread.name.startswith("compute") and thread.is_alive() for thread in threading.enumerate()):
        # Model work under way cannot be cancelled, and nothing waits for it any more.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    return code


async def _run(config: NodeConfig, events: EventStream, build: Build | None) -> int:
    from node.app import Node
    from node.running import stop_on_signals, until_stopped

    async with stop_on_signals() as stop:
        has_ended = await until_stopped(Node(config, events, build=build).run(), stop, seconds=SHUTDOWN_SECONDS)
        return 130 if stop.was_interrupt and not has_ended else 0


def _add_flag(group: argparse._ArgumentGroup, name: str, field: FieldInfo) -> None:
    from pydantic_core import PydanticUndefined

    flag, text = "--" + name.replace("_", "-"), (field.description or "").replace("%", "%%")
    if name in SWITCHES:
        group.add_argument(flag, action="store_const", const=True, help=text)
        return
    if field.default not in (None, (), PydanticUndefined):
        text += f" Default: {field.default}."
    metavar = METAVARS.get(name, name.rpartition("_")[2].upper())
    if name in REPEATED:
        group.add_argument(flag, action="append", metavar=metavar, help=f"{text} May be repeated.")
    else:
        group.add_argument(flag, metavar=metavar, help=text)


def _read_config(words: Sequence[str]) -> NodeConfig:
    from node.config import NodeConfig, load_config

    parser = Parser(
        "intellect-node",
        "Run one node of a training run, until the run has ended or Ctrl-C.",
        examples=EXAMPLES,
        usage="intellect-node --role ROLE --join RUN [--wallet WALLET] [any setting below]",
    )
    grouped = {name for names in GROUPS.values() for name in names}
    rest = tuple(name for name in NodeConfig.model_fields if name not in grouped)
    for title, names in {**GROUPS, "machine": rest}.items():
        group = parser.add_argument_group(title)
        for name in names:
            _add_flag(group, name, NodeConfig.model_fields[name])
    parser.add_argument("--config", type=Path, metavar="FILE", help="TOML file with any of these settings")
    options = vars(parser.parse_args(words))
    file = options.pop("config") or os.environ.get("INTELLECT_NODE_CONFIG")
    flags = {name: tuple(value) if name in REPEATED and value else value for name, value in options.items()}
    return load_config(file=Path(file) if file else None, environment=os.environ, flags=flags)
