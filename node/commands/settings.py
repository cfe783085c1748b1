"""The flags for a node's settings, shared by every command that takes them: one per field,
with the field's description."""

from __future__ import annotations

import os
from argparse import Namespace, _ArgumentGroup
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from node.parsing import Parser

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo

    from node.sources import Sources

GROUPS = {
    "always needed": ("role", "join"),
    "who you are": ("wallet", "wallet_password_file", "key", "data"),
    "finding the run": ("peer", "relay", "relay_ca", "rpc", "spec"),
    "being found": ("host", "port", "announce", "http_port", "http_url", "tls_certificate", "tls_key"),
    "relays": ("archive",),
    "trainers, validators and sponsors": (
        "operator_key",
        "operator_password_file",
        "model",
        "sponsor",
        "sponsor_hourly",
    ),
    "the ledger": ("confirmations", "max_fee_gwei"),
}
"""Settings by help group. Those not named here belong to `machine`."""
METAVARS = {
    "role": "ROLE",
    "join": "RUN",
    "wallet": "WALLET",
    "device": "DEVICE",
    "engine": "ENGINE",
    "log_level": "LEVEL",
    "max_disk": "BYTES",
    "max_fee_gwei": "GWEI",
    "confirmations": "BLOCKS",
    "tensor_parallel": "GPUS",
    "gpu_share": "SHARE",
    **dict.fromkeys(("rpc", "relay", "http_url"), "URL"),
    **dict.fromkeys(("peer", "announce"), "MULTIADDR"),
    **dict.fromkeys(("data", "model"), "FOLDER"),
    **dict.fromkeys(("key", "operator_key", "spec", "relay_ca", "tls_certificate", "tls_key"), "FILE"),
    **dict.fromkeys(("wallet_password_file", "operator_password_file"), "FILE"),
    **dict.fromkeys(("host", "status_host"), "ADDRESS"),
    **dict.fromkeys(("port", "http_port", "status_port"), "PORT"),
    **dict.fromkeys(("upload_limit", "download_limit"), "MBIT"),
}
"""Placeholder after each flag in the help; numbers not named here get N."""
CONFIG_VARIABLE = "INTELLECT_NODE_CONFIG"


@dataclass(frozen=True, slots=True)
class Given:
    """The settings part of a command line: the configuration file, if any, and the settings given as flags."""

    file: Path | None
    flags: dict[str, Any]

    def sources(self, *, default_role: str | None = None) -> Sources:
        """All sources of settings, ready to be merged. Raises ConfigError, UsageError."""
        from node.sources import Sources

        return Sources.read(
            file=self.file,
            environment=os.environ,
            flags=self.flags,
            first={"role": default_role} if default_role else {},
        )


def grouped_settings() -> dict[str, tuple[str, ...]]:
    """Every setting, by the title of its group."""
    from node.config import NodeConfig

    named = {name for names in GROUPS.values() for name in names}
    return {**GROUPS, "machine": tuple(name for name in NodeConfig.model_fields if name not in named)}


def add_setting_flags(parser: Parser) -> None:
    """A flag for each setting, and `--config`."""
    from node.config import NodeConfig

    for title, names in grouped_settings().items():
        group = parser.add_argument_group(title)
        for name in names:
            _add_flag(group, name, NodeConfig.model_fields[name])
    parser.add_argument("--config", type=Path, metavar="FILE", help="TOML file with any of these settings")


def given_in(options: Namespace) -> Given:
    """The settings among a command's options."""
    from node.config import NodeConfig

    values = {name: value for name, value in vars(options).items() if name in NodeConfig.model_fields}
    flags = {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}
    file = options.config or os.environ.get(CONFIG_VARIABLE)
    return Given(Path(file) if file else None, {name: value for name, value in flags.items() if value is not None})


def read_settings(parser: Parser, words: Sequence[str]) -> Given:
    """Parse a command line that contains only settings."""
    return given_in(parser.parse_args(words))


def _add_flag(group: _ArgumentGroup, name: str, field: FieldInfo) -> None:
    from pydantic_core import PydanticUndefined

    from node.config import LISTS

    flag, text = "--" + name.replace("_", "-"), (field.description or "").replace("%", "%%")
    if field.annotation is bool:
        group.add_argument(flag, action="store_const", const=True, help=text)
        return
    if field.default not in (None, (), PydanticUndefined):
        text += f" Default: {field.default}."
    metavar = METAVARS.get(name, "N")
    if name in LISTS:
        group.add_argument(flag, action="append", metavar=metavar, help=f"{text} May be repeated.")
    else:
        group.add_argument(flag, metavar=metavar, help=text)
