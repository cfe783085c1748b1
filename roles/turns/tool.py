"""The definition of a tool, and the tools available: those of this version, and plug-ins.

A tool is pure: it maps the text of a call to the text of its answer, the same on every machine. A plug-in is an entry
point of the group `intellect_node.tools`: a function from parameters to a `Tool`.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import metadata
from typing import Protocol

from roles.spec import ToolSpec
from roles.tasks.task import TaskError
from roles.turns.calculator import NAME, load_calculator

GROUP = "intellect_node.tools"
MAX_ANSWER = 4096
"""Characters of an answer; longer ones are cut."""


class Tool(Protocol):
    """Answers calls. A call is the text in a turn between the last `opening` and the `closing` that ends it."""

    @property
    def name(self) -> str:
        """The tool's name for `load_tool`."""

    @property
    def digest(self) -> str:
        """SHA-256, lower-case hex, over everything that determines an answer."""

    @property
    def opening(self) -> str:
        """The text that starts a call; empty: the start of the turn."""

    @property
    def closing(self) -> str:
        """The text that ends a call, and with it the policy's turn: a few printable ASCII characters, no blanks."""

    def answer(self, call: str) -> str:
        """The text inserted after the call. Total, bounded in time and the same everywhere, on any text."""


@dataclass(frozen=True, slots=True)
class ToolUse:
    """A tool and its limits within a completion: number of calls, and tokens per answer."""

    tool: Tool
    max_calls: int
    max_tokens: int


def load_tool(name: str, parameters: Mapping[str, int | str]) -> Tool:
    """Build the named tool. Raises TaskError, with the nearest known word, for one that is not installed."""
    if name == NAME:
        return load_calculator(parameters)
    plugins = {point.name: point for point in metadata.entry_points(group=GROUP)}
    if name not in plugins:
        near = difflib.get_close_matches(name[:64], [NAME, *plugins], n=1)
        hint = f"did you mean {near[0]!r}?" if near else "install the package that has it, as the run's operator says"
        raise TaskError(f"the tool {name[:64]!r} is not on this machine: {hint}")
    try:
        loader: Callable[[Mapping[str, int | str]], Tool] = plugins[name].load()
        return loader(parameters)
    except TaskError:
        raise
    except Exception as error:  # third-party code
        raise TaskError(f"the plug-in of tool {name!r} failed: {type(error).__name__}: {error}"[:300]) from error


def load_tool_use(pin: ToolSpec | None) -> ToolUse | None:
    """A run's tool, checked against the digest in its spec; None if the run has none. Raises TaskError."""
    if pin is None:
        return None
    tool = load_tool(pin.name, pin.parameters)
    if tool.digest != pin.digest:
        raise TaskError(
            f"the tool {pin.name} of this installation is not the run's: it may answer otherwise; install the version that "
            "the run's operator names"
        )
    return ToolUse(tool, pin.max_calls, pin.max_tokens)
