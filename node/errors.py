"""What a user did or left undone; the text is the sentence shown."""

from __future__ import annotations

from dht.errors import NodeError


class ConfigError(NodeError):
    """A setting, file or command line is wrong; the text says which and what to do."""

    exit_code = 1


class UsageError(ConfigError):
    """The command line or a setting is wrong in itself: it will be next time too, so nothing starts a node again by itself."""

    exit_code = 2


class Unfit(ConfigError):
    """This machine is not what the run asks for; the text has every shortfall. Trying again does not help."""

    exit_code = 3
