"""`intellect-node doctor`: checks whether this machine, with these settings, can take part,
and gives a fix for each fault."""

from __future__ import annotations

import asyncio
import json
import sys
import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING

from node.commands.settings import add_setting_flags, given_in
from node.parsing import Parser, print_line

if TYPE_CHECKING:
    from node.config import NodeConfig
    from node.doctor import Finding

EXAMPLES = """\
  intellect-node doctor                                    this machine alone
  intellect-node doctor --join RUN --wallet 0x..           and its way to a run, as a worker
  intellect-node doctor --config relay.toml --json         exactly as that node would start

Give it the settings your node has. It changes nothing. Exit code 0 when no fault was found, else 1.
"""
MARKS = {"ok": "+", "skipped": "-", "warning": "!", "fault": "X"}
COLOURS = {"ok": "green", "skipped": "dim", "warning": "yellow", "fault": "bold red"}
WIDTH = 100


def main(words: Sequence[str]) -> int:
    """Run the command."""
    parser = Parser(
        "intellect-node doctor",
        "Check this machine and its connections to a run, and print the fix for each fault.",
        examples=EXAMPLES,
        usage="intellect-node doctor [--join RUN] [--role ROLE] [any setting of a node] [--json]",
    )
    parser.add_argument("--json", action="store_true", help="findings as JSON: check, state, said, fix")
    add_setting_flags(parser)
    options = parser.parse_args(words)
    config = given_in(options).sources(default_role="worker").merge()
    from node.commands.reading import quiet_events

    quiet_events()
    return asyncio.run(_examine(config, as_json=options.json))


async def _examine(config: NodeConfig, *, as_json: bool) -> int:
    from node.doctor import State, examine, worst

    findings = []
    show = _Display(sys.stdout.isatty() and not as_json)
    async for finding in examine(config):
        findings.append(finding)
        if not as_json:
            show.add(finding)
    if as_json:
        plain = [
            {"check": each.check, "state": str(each.state), "said": each.said, "fix": each.fix} for each in findings
        ]
        print_line(json.dumps({"state": str(worst(findings)), "findings": plain}, indent=2))
    else:
        show.close(findings)
    return 1 if worst(findings) is State.FAULT else 0


class _Display:
    """Prints findings, in colour on a terminal that supports it."""

    def __init__(self, is_terminal: bool) -> None:
        from rich.console import Console

        self._console = Console(highlight=False, soft_wrap=True)
        if is_terminal:
            print_line("looking; a silent seed takes some seconds")

    def add(self, finding: Finding) -> None:
        """Print one finding with its fix below."""
        from rich.text import Text

        state = str(finding.state)
        self._console.print(
            Text.assemble((f"{MARKS[state]} {state:8}", COLOURS[state]), f"{finding.check:14} {finding.said}")
        )
        for line in textwrap.wrap(finding.fix, WIDTH):
            self._console.print(Text(f"{'':24} -> {line}"))

    def close(self, findings: Sequence[Finding]) -> None:
        """Print how many findings there are of each kind."""
        counts = {state: sum(str(each.state) == state for each in findings) for state in MARKS}
        faults, warnings = counts["fault"], counts["warning"]
        if faults:
            print_line(
                f"\n{_count(faults, 'fault')} to mend before this node can work, and {_count(warnings, 'warning')}"
            )
        else:
            beside = f", with {_count(warnings, 'warning')}" if warnings else ""
            print_line(f"\nready{beside}")


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
