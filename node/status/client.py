"""Finds and reads the status of a node on this machine, from its data folder."""

from __future__ import annotations

import json
import os
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dht.disk import write_durably
from node.defaults import STATUS_TIMEOUT_SECONDS
from node.errors import ConfigError

STATUS_FILE = "status.json"
MAX_STATUS_BYTES = 4 * 2**20
EVERY_INTERFACE = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - nothing listens there
"""Addresses that mean every interface, and the loopback address to reach them at."""


def write_status_file(home: Path, *, port: int, host: str = "127.0.0.1") -> None:
    """Record the address of the status endpoint, for `intellect-node status`."""
    write_durably(home / STATUS_FILE, json.dumps({"host": host, "port": port, "pid": os.getpid()}).encode())


def page_url(home: Path) -> str:
    """URL of the page of the node in this folder. Raises ConfigError when none ever ran there."""
    path = home / STATUS_FILE
    try:
        told = json.loads(path.read_text())
        host = str(told.get("host", "127.0.0.1"))
        host = EVERY_INTERFACE.get(host, host)
        return f"http://{f'[{host}]' if ':' in host else host}:{int(told['port'])}/"
    except FileNotFoundError as error:
        raise ConfigError(f"no node has run in {home}; name its folder with --data") from error
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"{path} is damaged; restart the node") from error


def read_status(home: Path) -> Mapping[str, Any]:
    """The status of the node running in this folder. Raises ConfigError when none does."""
    url = page_url(home)
    try:
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(f"{url}status.json", timeout=STATUS_TIMEOUT_SECONDS) as reply:
            plain: Mapping[str, Any] = json.loads(reply.read(MAX_STATUS_BYTES))
            return plain
    except (OSError, ValueError) as error:
        raise ConfigError(f"the node of {home} does not run ({url} does not answer)") from error
