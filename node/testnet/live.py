"""Two ways to watch a testnet: a live view in a terminal, or a line whenever something happened."""

from __future__ import annotations

import io
import re
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from node.cells import add_row, words
from node.testnet.picture import Picture, sparkline

PICTURE_WIDTH = 112
PICTURE_HEIGHT = 60
FIXED_LINES = 8
"""Title, four lines of progress, two table headers, the last line."""
WALLET_WIDTH = 42
NUMBERS_WIDTH = 28
"""Width of the two columns beside a wallet's, with their padding. In a small terminal
the address is truncated instead."""
GAPS = 4
WRAP_LOSS = 40
"""Characters that word wrapping may leave empty at line ends."""


@dataclass(frozen=True, slots=True)
class Frame:
    """Everything drawn at one moment. `contributions`: wallet -> (final, pending) tokens; `states`: node -> state."""

    picture: Picture
    steps: int
    seconds: float
    run: str
    join_command: str
    block: int
    contributions: Mapping[str, tuple[int, int]]
    states: Mapping[str, str]


class View(Protocol):
    """Shows frames and prints lines."""

    def __enter__(self) -> View: ...

    def __exit__(self, *_: object) -> None: ...

    def draw(self, frame: Frame) -> None: ...

    def say(self, text: str) -> None: ...


class LiveView:
    """A page that is redrawn in place."""

    def __init__(self) -> None:
        self._console = Console()
        self._live = Live(console=self._console, auto_refresh=False, transient=True)

    def __enter__(self) -> LiveView:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def draw(self, frame: Frame) -> None:
        """Show this frame in place of the last."""
        width, height = self._console.size
        self._live.update(render(frame, width=width, height=height - 1), refresh=True)

    def say(self, text: str) -> None:
        """Print a line above the page, where it stays."""
        self._console.print(Text(text), soft_wrap=True)  # so that a command can be copied in one piece


class PlainView:
    """Lines, for logs and pipes: one for each step trained and for each change of a node's state."""

    def __init__(self) -> None:
        self._trained = 0
        self._states: dict[str, str] = {}
        self._has_accepted = False

    def __enter__(self) -> PlainView:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def draw(self, frame: Frame) -> None:
        """Print what is new since the last frame."""
        for name, state in frame.states.items():
            if self._states.get(name) != state:
                self._states[name] = state
                self.say(f"{frame.seconds:6.1f} s  {name} {state}")
        picture = frame.picture
        if picture.accepted and not self._has_accepted:
            self._has_accepted = True
            self.say(f"{frame.seconds:6.1f} s  first accepted rollouts")
        for step in range(self._trained + 1, picture.trained + 1):
            self.say(f"{frame.seconds:6.1f} s  {describe_step(frame, step)}")
        self._trained = picture.trained

    def say(self, text: str) -> None:
        """A line on standard output."""
        sys.stdout.write(text + "\n")
        sys.stdout.flush()


def describe_step(frame: Frame, step: int) -> str:
    """One line about a trained step."""
    picture = frame.picture
    reward = picture.rewards.get(step)
    said = "" if reward is None else f" reward {reward:.3f}"
    return f"step {step}/{frame.steps}{said}  accepted {len(picture.accepted)}  refused {_reasons(picture)}"


def render(frame: Frame, *, width: int = PICTURE_WIDTH, height: int = PICTURE_HEIGHT) -> Group:
    """The page in at most `height` lines. Nodes, then wallets, are left out where a terminal is too small."""
    wallets, nodes = max(1, len(frame.contributions)), len(frame.states)
    space = height - FIXED_LINES - wallets - nodes
    command = _command(frame)
    lines = sum(1 + (len(line.plain) + WRAP_LOSS) // width for line in command)
    if space < lines:
        command, lines = [Text("add a worker by the command above", style="dim", no_wrap=True)], 1
    space -= lines
    gap = [Text()] if space >= GAPS else []
    nodes_shown = max(3, nodes + min(0, space))
    wallets_shown = max(2, wallets + min(0, space + nodes - nodes_shown))
    return Group(
        _title(frame),
        *gap,
        _progress(frame, width),
        *gap,
        _contributions(frame.contributions, wallets_shown, width),
        *gap,
        _nodes(frame, nodes_shown, width),
        *gap,
        *command,
        Text("Ctrl-C stops everything", style="dim", no_wrap=True),
    )


def _command(frame: Frame) -> list[Text]:
    return [Text("add a worker from another terminal:", style="dim"), Text(f"  {frame.join_command}", style="dim")]


def _title(frame: Frame) -> Text:
    clock = time.strftime("%M:%S", time.gmtime(frame.seconds))
    return Text.assemble(
        ("intellect-node testnet", "bold"),
        f"   run {frame.run[:12]}..   block {frame.block}   {clock}",
        no_wrap=True,
        overflow="ellipsis",
    )


def _progress(frame: Frame, width: int) -> Table:
    picture, curve = frame.picture, frame.picture.reward_curve
    if picture.step == 0:
        step = f"0 of {frame.steps} trained: the nodes are starting"
    else:
        now = "ended" if picture.has_ended else f"collecting rollouts for {picture.step}"
        step = f"{picture.trained} of {frame.steps} trained, {max(0, picture.committed)} on the ledger; {now}"
    lines = Table.grid(padding=(0, 2))
    lines.add_column(no_wrap=True, style="cyan", min_width=8)
    lines.add_column(no_wrap=True, overflow="ellipsis")
    add_row(lines, "step", step)
    bars = sparkline(curve, width=max(8, min(60, width - 36)))
    add_row(lines, "reward", Text.assemble((bars, "green"), _from_to(curve)))
    add_row(lines, "accepted", f"{len(picture.accepted)} submissions, {sum(picture.tokens.values())} tokens")
    add_row(lines, "refused", _reasons(picture))
    return lines


def _from_to(curve: Sequence[float]) -> str:
    """`0.310 -> 0.875`: mean reward of the first step and of the newest."""
    return f"  {curve[0]:.3f} -> {curve[-1]:.3f}" if curve else "no step's answers are complete yet"


def save_picture(frame: Frame, path: Path) -> None:
    """Save the page as an SVG that loads nothing from elsewhere."""
    console = Console(file=io.StringIO(), width=PICTURE_WIDTH, record=True, force_terminal=True)
    console.print(render(frame))
    path.expanduser().write_text(
        re.sub(r"@font-face\s*\{.*?\}", "", console.export_svg(title="scripts/testnet"), flags=re.DOTALL)
    )


def _reasons(picture: Picture) -> str:
    return ", ".join(f"{count} {reason}" for reason, count in picture.reasons.most_common()) or "0"


def _contributions(contributions: Mapping[str, tuple[int, int]], rows: int, width: int) -> Table:
    room = width - NUMBERS_WIDTH
    head = "wallet (tokens that a quorum verified)" if room >= WALLET_WIDTH else "wallet"
    table = _table((head, "left"), ("on the ledger", "right"), ("pending", "right"))
    shown = len(contributions) if len(contributions) <= rows else rows - 1
    for wallet, (final, pending) in list(contributions.items())[:shown]:
        name = wallet if len(wallet) <= room else f"{wallet[: max(6, room - 2)]}.."
        add_row(table, name, str(final), str(pending))
    if not contributions:
        add_row(table, Text("nothing accepted yet", style="dim"), "", "")
    if len(contributions) > shown:
        add_row(table, Text(f"and {len(contributions) - shown} more", style="dim"), "", "")
    return table


def _nodes(frame: Frame, rows: int, width: int) -> Table:
    table = _table(("node", "left"), ("state", "left"), ("last event", "left"))
    shown = len(frame.states) if len(frame.states) <= rows else rows - 1
    for name, state in list(frame.states.items())[:shown]:
        add_row(table, name, words(state, _style_of(state)), frame.picture.nodes[name].last[: max(8, width - 28)])
    if len(frame.states) > shown:
        add_row(table, Text(f"and {len(frame.states) - shown} more", style="dim"), "", "")
    return table


def _style_of(state: str) -> str:
    if state.startswith(("crashed", "killed")):
        return "red"
    return "green" if state in ("ready", "restarted") else ""


def _table(*columns: tuple[str, Literal["left", "right"]]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold cyan", expand=False)
    for name, justify in columns:
        table.add_column(name, justify=justify, no_wrap=True, overflow="ellipsis")
    return table


def summary_lines(frame: Frame, *, checks: Sequence[str]) -> list[str]:
    """The lines printed at the end."""
    picture, curve = frame.picture, frame.picture.reward_curve
    lines = ["", f"run {frame.run}"]
    if curve:
        lines.append(f"reward   {sparkline(curve)}  {curve[0]:.3f} -> {curve[-1]:.3f} in {len(curve)} steps")
    lines.append(
        f"accepted {len(picture.accepted)} submissions, {sum(picture.tokens.values())} tokens; refused {_reasons(picture)}"
    )
    lines.append("contributions by wallet (tokens on the ledger)")
    lines += [f"  {wallet:44} {final:>9}" for wallet, (final, _) in frame.contributions.items()] or ["  none"]
    return [*lines, *checks]
