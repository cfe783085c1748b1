"""One process of the peer package (PyPI `shardcast` 0.3.2), run by an interpreter that has it. Arguments:
role, folder, port, then the file (origin) or the servers (middle, client). It polls for new versions every
second, like its command-line flag."""

from __future__ import annotations

import json
import sys
import time
from importlib import import_module
from pathlib import Path


def say(event: str) -> None:
    """One line of JSON for the parent."""
    sys.stdout.write(json.dumps({"event": event, "at": time.monotonic()}) + "\n")
    sys.stdout.flush()


def main(role: str, folder: str, port: int, rest: list[str]) -> None:
    """Run one of the three roles."""
    Path(folder).mkdir(parents=True, exist_ok=True)
    (Path(folder) / "data1.bin").write_bytes(bytes(1_000_000))  # its speed probe
    if role == "origin":
        origin = import_module("shardcast.origin_server").OriginServer(folder, port)
        say("ready")
        sys.stdin.readline()
        origin.broadcast(rest[0])
        say("published")
        sys.stdin.readline()
    elif role == "middle":
        import_module("shardcast.middle_node").MiddleNode(
            upstream_servers=rest, data_dir=folder, port=port, check_interval=1
        )
        say("ready")
        sys.stdin.readline()
    else:
        client = import_module("shardcast.client_node").ClientNode(rest, folder)
        say("ready")
        sys.stdin.readline()
        while not (client.list_available_versions() and client.download_version("v1", str(Path(folder) / "out.bin"))):
            time.sleep(0.1)
        say("done")
        sys.stdin.readline()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4:])
