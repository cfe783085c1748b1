"""Two ways to watch a testnet: a live view in a terminal, or a line whenever something happened."""

from __future__ import annotations

import io
import re
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from node.testnet.picture import Picture, sparkline

PICTURE_WIDTH = 112


@dataclass(frozen=True, slots=True)
class Frame:
    """All that is drawn at one moment. `contributions`: wallet -> (final, pending) tokens; `states`: node -> state."""

    picture: Picture
    steps: int
    seconds: float
    run: str
    join_command: str
    block: int
    contributions: Mapping[str, tuple[int, int]]
    states: Mapping[str, str]


class View(Protocol):
    """Shows frames and says lines."""

    def __enter__(self) -> View: ...

    def __exit__(self, *_: object) -> None: ...

    def draw(self, frame: Frame) -> None: ...

    def say(self, text: str) -> None: ...


class LiveView:
    """A page that is drawn over and over."""

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
        self._live.update(render(frame), refresh=True)

    def say(self, text: str) -> None:
        """A line above the page, that stays."""
        self._console.print(Text(text), soft_wrap=True)  # so that a command can be copied whole


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
        """Say what is new since the last frame."""
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


def render(frame: Frame) -> Group:
    """The page."""
    picture = frame.picture
    curve = picture.reward_curve
    title = Text.assemble(
        ("intellect-node testnet", "bold"),
        f"   run {frame.run[:12]}..   block {frame.block}   {time.strftime('%M:%S', time.gmtime(frame.seconds))}",
    )
    reward = f"{curve[-1]:.3f}" if curve else "-"
    lines = Table.grid(padding=(0, 2))
    lines.add_row(
        "step", f"{picture.trained} of {frame.steps} trained, collecting {picture.step}, committed {picture.committed}"
    )
    lines.add_row("reward", Text.assemble((sparkline(curve), "green"), f" {reward}"))
    lines.add_row("accepted", f"{len(picture.accepted)} submissions, {sum(picture.tokens.values())} tokens")
    lines.add_row("refused", _reasons(picture))
    return Group(
        title,
        Panel(lines, expand=False),
        _contributions(frame.contributions),
        _nodes(frame),
        Text(f"add a worker from another terminal:\n  {frame.join_command}\nCtrl-C stops everything", style="dim"),
    )


def save_picture(frame: Frame, path: Path) -> None:
    """The page as an SVG that loads nothing from elsewhere."""
    console = Console(file=io.StringIO(), width=PICTURE_WIDTH, record=True, force_terminal=True)
    console.print(render(frame))
    path.write_text(re.sub(r"@font-face\s*\{.*?\}", "", console.export_svg(title="scripts/testnet"), flags=re.DOTALL))


def _reasons(picture: Picture) -> str:
    return ", ".join(f"{count} {reason}" for reason, count in picture.reasons.most_common()) or "0"


def _contributions(contributions: Mapping[str, tuple[int, int]]) -> Table:
    table = Table(title="contributions (verified tokens)", title_justify="left", expand=False)
    table.add_column("wallet")
    table.add_column("on the ledger", justify="right")
    table.add_column("pending", justify="right")
    for wallet, (final, pending) in contributions.items():
        table.add_row(wallet, str(final), str(pending))
    return table


def _nodes(frame: Frame) -> Table:
    table = Table(title="nodes", title_justify="left", expand=False)
    table.add_column("node")
    table.add_column("state")
    table.add_column("last event", no_wrap=True)
    for name, state in frame.states.items():
        style = "red" if state.startswith("crashed") else "" if state != "ready" else "green"
        table.add_row(name, Text(state, style=style), frame.picture.nodes[name].last)
    return table


def summary_lines(frame: Frame, *, checks: Sequence[str]) -> list[str]:
    """What is printed at the end."""
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
