"""Errors caused by the user. The text is the sentence shown."""

from __future__ import annotations

from dht.errors import NodeError


class ConfigError(NodeError):
    """A setting, file or command line is wrong; the text says which and what to do."""

    exit_code = 1


class UsageError(ConfigError):
    """The command line or a setting is invalid in itself. It will be invalid next time too, so nothing
    restarts the node automatically."""

    exit_code = 2


class Unfit(ConfigError):
    """This machine does not meet the run's requirements; the text lists every shortfall. Trying again does not help."""

    exit_code = 3
