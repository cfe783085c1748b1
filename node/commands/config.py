"""`intellect-node config`: every setting as a node would use it, and where its value comes from."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from node.commands.settings import add_setting_flags, given_in, grouped_settings
from node.parsing import Parser, print_line

EXAMPLES = """\
  intellect-node config --config worker.toml
  INTELLECT_NODE_PORT=4001 intellect-node config --role relay --json

Later wins: the default, --config (or INTELLECT_NODE_CONFIG), INTELLECT_NODE_<NAME>, a flag. Access keys in URLs are not shown.
"""


def main(words: Sequence[str]) -> int:
    """Run the command."""
    parser = Parser(
        "intellect-node config",
        "Show every setting as a node would use it, and where its value comes from.",
        examples=EXAMPLES,
        usage="intellect-node config [--config FILE] [any setting of a node] [--json]",
    )
    parser.add_argument("--json", action="store_true", help="as JSON")
    add_setting_flags(parser)
    options = parser.parse_args(words)
    shown = _shown(given_in(options).sources(default_role="worker").explain())
    if options.json:
        print_line(json.dumps({name: {"value": value, "source": source} for name, (value, source) in shown.items()}))
        return 0
    width = max(len(value) for value, _ in shown.values())
    for title, names in grouped_settings().items():
        print_line(f"# {title}")
        for name in names:
            value, source = shown[name]
            print_line(f"{name:21} {value:{min(width, 48)}}  {source}")
    return 0


def _shown(settings: Mapping[str, object]) -> dict[str, tuple[str, str]]:
    from node.secrecy import shown_value
    from node.sources import Setting

    return {
        name: (shown_value(setting.value), setting.source)
        for name, setting in settings.items()
        if isinstance(setting, Setting)
    }
