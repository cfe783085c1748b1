"""What a user did or left undone; the text is the sentence shown."""

from __future__ import annotations

from dht.errors import NodeError


class ConfigError(NodeError):
    """A setting, file or command line is wrong; the text says which and what to do."""


class UsageError(ConfigError):
    """The command line or a setting is wrong in itself (exit code 2)."""
