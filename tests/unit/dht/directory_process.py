"""One DHT node in a process of its own, for networks of namespaces, controlled by lines of JSON.

python -m tests.unit.dht.directory_process FOLDER '{"host_maddrs": [..], "initial_peers": [..], "client_mode": false}'

Takes `{"publish": TEXT}`, `{"read": true}`, `{"addresses": true}`, `{"state": true}`; answers each with a line.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import structlog

from dht.directory import HivemindDirectory
from dht.envelope import seal
from dht.errors import TransportError
from dht.identity import NodeKey
from dht.records import unix_ms
from node.lifetime import die_with_parent

RUN = "ab" * 32
KEY = f"{RUN}/nodes/worker"


def answer(**fields: Any) -> None:
    """Print one line for the parent process."""
    sys.stdout.write(json.dumps(fields) + "\n")
    sys.stdout.flush()


async def run(folder: Path, options: dict[str, Any]) -> None:
    """Serve until the input ends."""
    key = NodeKey.generate()
    key.save(folder / "key")
    lines = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    async with HivemindDirectory.open(
        key_path=folder / "key",
        run=RUN,
        limits={"node/1": 4096},
        lifetimes={"node/1": 90},
        peer_cache=folder / "peers.json",
        state_dir=folder,
        **options,
    ) as directory:
        answer(addresses=directory.addresses(), node=key.node)
        while line := await lines.readline():
            answer(**await act(directory, key, json.loads(line)))


async def act(directory: HivemindDirectory, key: NodeKey, command: dict[str, Any]) -> dict[str, Any]:
    """Execute one command."""
    try:
        if "publish" in command:
            now = unix_ms()
            row = seal(
                key,
                run=RUN,
                kind="node/1",
                record_key=KEY,
                subkey=key.node,
                sequence=now,
                expiration=now + 80_000,
                payload=command["publish"].encode(),
            )
            await directory.publish(row)
            return {"done": True}
        if "read" in command:
            rows = (await directory.read([KEY]))[KEY]
            return {"rows": {row.signer: row.payload.decode() for row in rows}}
        if "addresses" in command:
            return {"addresses": directory.addresses()}
    except TransportError as error:
        return {"failed": str(error)}
    table = sum(peer.is_in_table for peer in directory.peers())
    return {"state": directory.state, "table": table, "pid": directory.daemon_pid}


if __name__ == "__main__":
    die_with_parent()
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    asyncio.run(run(Path(sys.argv[1]), json.loads(sys.argv[2])))
