"""`intellect-node init`: writes a configuration file that explains every setting;
those given as flags are set in it."""

from __future__ import annotations

import json
import os
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from node.commands.settings import add_setting_flags, given_in, grouped_settings
from node.parsing import Parser, print_line

if TYPE_CHECKING:
    from node.config import NodeConfig

HEAD = """\
# Settings of an intellect-node. A line that begins with # is not in force and shows the default.
# Later wins: this file, an environment variable INTELLECT_NODE_<NAME>, a flag. Unknown names are refused.
#   start:                 intellect-node --config {file}
#   what is in force:      intellect-node config --config {file}
#   is the machine ready?  intellect-node doctor --config {file}
"""
EXAMPLES = """\
  intellect-node init                                              writes intellect-node.toml for a worker
  intellect-node init relay.toml --role relay --port 4001 --http-port 8080
  intellect-node init - --role worker --join 'intellect://..' --wallet 0x..    to the terminal
"""
DEFAULT_FILE = "intellect-node.toml"


def main(words: Sequence[str]) -> int:
    """Run the command."""
    parser = Parser(
        "intellect-node init",
        "Write a commented configuration: every setting of a node, those given as flags set.",
        examples=EXAMPLES,
        usage="intellect-node init [FILE] [any setting of a node]",
    )
    parser.add_argument("file", nargs="?", default=DEFAULT_FILE, help="where to write; - for the terminal")
    add_setting_flags(parser)
    options = parser.parse_args(words)
    flags = given_in(options).flags
    config = given_in(options).sources(default_role="worker").merge()
    text = format_config(config, given={"role": config.role, **flags}, file=options.file)
    if options.file == "-":
        print_line(text.rstrip())
        return 0
    _write_new(Path(options.file).expanduser(), text)
    print_line(f"wrote {options.file}; edit it, then: intellect-node --config {options.file}")
    return 0


def format_config(config: NodeConfig, *, given: Mapping[str, Any], file: str) -> str:
    """The file's text. Settings in `given` are set; the others appear as comments with their default."""
    lines = [HEAD.format(file=file if file != "-" else DEFAULT_FILE)]
    for title, names in grouped_settings().items():
        lines.append(f"# ---- {title} ----\n")
        for name in names:
            lines += [*_format_setting(config, name, is_set=name in given), ""]
    return "\n".join(lines)


def _format_setting(config: NodeConfig, name: str, *, is_set: bool) -> Iterator[str]:
    field = type(config).model_fields[name]
    yield from (f"# {line}" for line in textwrap.wrap(field.description or "", 112))
    value = getattr(config, name) if is_set else field.get_default()
    yield f"{'' if is_set else '#'}{name} = {format_value(value)}"


def format_value(value: Any) -> str:
    """A value as TOML; None as an empty string."""
    if isinstance(value, bool | int | float):
        return json.dumps(value)
    if isinstance(value, tuple):
        return f"[{', '.join(map(format_value, value))}]"
    return json.dumps("" if value is None else str(value), ensure_ascii=False)


def _write_new(path: Path, text: str) -> None:
    from node.errors import ConfigError

    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)  # an RPC URL may contain an access key
    except FileExistsError as error:
        raise ConfigError(f"{path} exists already; name another file, or move that one away") from error
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror}") from error
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
