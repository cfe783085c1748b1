"""One process of a broadcast: origin, relay or client. It is configured by JSON in its
argument, then controlled by lines.

Every line it prints has `at`, the monotonic clock, which all processes of one machine share.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from dht.disk import write_durably
from dht.encoding import ZERO_DIGEST, encode
from dht.envelope import Envelope, seal
from dht.errors import TransportError
from dht.identity import NodeKey
from roles.messages import CheckpointRow, checkpoints_key, place_of, subkey_for
from roles.relay import Relay, RelaySettings, serve
from roles.shardcast.client import RelayClient
from roles.shardcast.grants import hint_of
from roles.shardcast.manifest import build_manifest, choose_shard_size, manifest_digest, seal_manifest
from roles.shardcast.relay_http import make_http
from roles.shardcast.replies import RelayInfo

RUN = "ab" * 32
TRAINER = NodeKey(b"t" * 32)
WORKER = NodeKey(b"w" * 32)
MANIFEST_WAIT = 0.02
"""Seconds between retries of a client whose manifest no relay has yet."""
Config = dict[str, Any]


@cache
def relay_key(number: int) -> NodeKey:
    """A relay's key, the same in every process."""
    return NodeKey(bytes([number + 1]) * 32)


def infos(config: Config) -> tuple[RelayInfo, ...]:
    """The relays that this process knows: `relays` maps a number to a URL."""
    return tuple(RelayInfo(relay_key(int(number)).node, url) for number, url in config["relays"].items())


def say(**fields: object) -> None:
    """One line of JSON for the parent."""
    sys.stdout.write(json.dumps({"at": time.monotonic(), **fields}) + "\n")
    sys.stdout.flush()


def spent(since: float) -> dict[str, float]:
    """Peak resident memory of this process in MB, and its CPU seconds over `since`."""
    lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return {"rss": int(lines["VmHWM"].split()[0]) * 1024 / 1e6, "cpu": time.process_time() - since}


def make_row(digest: str, holders: Sequence[str]) -> bytes:
    """The row that announces a checkpoint, as JSON that the relays' reader accepts."""
    return json.dumps({"manifest": digest, "holders": list(holders)}).encode()


class RowFile:
    """Stands in for the directory: the row is in a file once the origin has sealed its manifest."""

    def __init__(self, path: Path) -> None:
        self._path = path

    async def __call__(self, keys: Sequence[str]) -> Mapping[str, Sequence[Envelope]]:
        key = checkpoints_key(RUN)
        if key not in keys or not await asyncio.to_thread(self._path.exists):
            return {}
        told = json.loads(await asyncio.to_thread(self._path.read_text))
        message = CheckpointRow(term=1, step=1, manifest=told["manifest"])
        row = seal(
            TRAINER,
            run=RUN,
            kind="checkpoint/1",
            record_key=place_of(message, run=RUN, buckets=1)[0],
            subkey=subkey_for(message, run=RUN, signer=TRAINER.node, buckets=1),
            sequence=1,
            expiration=2**50,
            payload=encode(message),
            hint=hint_of(told["holders"]),
        )
        return {key: [row]}


async def run_relay(config: Config) -> None:
    """Serve and pull until told on stdin to stop."""
    settings = RelaySettings(max_disk=2**36)
    async with make_http() as http:
        relay = Relay(
            relay_key(config["number"]),
            root=Path(config["folder"]),
            run=RUN,
            trainers=[TRAINER.node],
            is_member=lambda node: False,
            relays=lambda: infos(config),
            http=http,
            read=RowFile(Path(config["row"])),
            settings=settings,
        )
        async with serve(relay.app, host="127.0.0.1", port=config["port"]) as url, asyncio.TaskGroup() as group:
            task = group.create_task(relay.run())
            idle = time.process_time()
            say(event="ready", url=url)
            await asyncio.to_thread(sys.stdin.readline)
            task.cancel()
            pulled, received = relay.counters.bytes_pulled, relay.counters.bytes_received
            say(event="spent", pulled=pulled, received=received, **spent(idle))


def cut_and_sign(folder: Path, shards: int) -> Envelope:
    """The manifest of everything in the folder, cut into about `shards` shards."""
    total = sum(path.stat().st_size for path in folder.iterdir())
    shard_size = choose_shard_size(total, shards=shards)
    return seal_manifest(
        TRAINER, build_manifest(folder, run=RUN, term=1, step=1, parent=ZERO_DIGEST, shard_size=shard_size)
    )


async def run_origin(config: Config) -> None:
    """Digest, sign and publish when told to on stdin."""
    folder = Path(config["folder"])
    async with make_http() as http, asyncio.TaskGroup() as group:
        client = RelayClient(TRAINER, run=RUN, trainers=[TRAINER.node], relays=lambda: infos(config), http=http)
        task = group.create_task(client.run())
        idle = time.process_time()
        say(event="ready")
        await asyncio.to_thread(sys.stdin.readline)
        say(event="began")
        envelope = await asyncio.to_thread(cut_and_sign, folder, config["shards"])
        digest = manifest_digest(envelope)
        await asyncio.to_thread(
            write_durably, Path(config["row"]), make_row(digest, [relay.node for relay in infos(config)])
        )
        say(event="sealed", digest=digest)
        holders = await client.put_checkpoint(envelope, folder)
        say(event="published", copies=len(holders))
        await asyncio.to_thread(sys.stdin.readline)
        task.cancel()
        say(event="spent", **spent(idle))


async def run_client(config: Config) -> None:
    """Fetch the checkpoint whose digest arrives on stdin. When `done` is printed, every byte is verified."""
    async with make_http() as http:
        client = RelayClient(WORKER, run=RUN, trainers=[TRAINER.node], relays=lambda: infos(config), http=http)
        idle = time.process_time()
        say(event="ready")
        digest = (await asyncio.to_thread(sys.stdin.readline)).strip()
        while True:
            try:
                path = await client.fetch_checkpoint(digest, Path(config["folder"]))
                break
            except TransportError:
                await asyncio.sleep(MANIFEST_WAIT)
        say(event="done", path=str(path))
        await asyncio.to_thread(sys.stdin.readline)
        say(event="spent", **spent(idle))


if __name__ == "__main__":
    given: Config = json.loads(sys.argv[1])
    asyncio.run({"relay": run_relay, "origin": run_origin, "client": run_client}[given["role"]](given))
