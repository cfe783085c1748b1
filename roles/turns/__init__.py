"""Completions in turns: the policy calls a tool, the tool answers inside the completion, the policy goes on."""

from roles.turns.spans import Turns, own_spans, own_tokens, tool_spans, turn_seed
from roles.turns.speaking import Spoken, find_call, speak
from roles.turns.tool import Tool, ToolUse, load_tool, load_tool_use

__all__ = [
    "Spoken",
    "Tool",
    "ToolUse",
    "Turns",
    "find_call",
    "load_tool",
    "load_tool_use",
    "own_spans",
    "own_tokens",
    "speak",
    "tool_spans",
    "turn_seed",
]
