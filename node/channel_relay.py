"""A relay of one publisher's checkpoints, without a run, a DHT or a ledger. Its neighbours are given as URLs."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

from dht.errors import PeerError, TransportError
from dht.locks import locked
from node.terminal import plain
from roles.relay import Certificate, Relay, RelaySettings, serve
from roles.shardcast import NodeKey, channel_of
from roles.shardcast.direct import introduce
from roles.shardcast.pace import Line
from roles.shardcast.relay_http import make_http
from roles.shardcast.replies import RelayInfo

LOOK_SECONDS = 5.0
"""Interval between attempts to reach a named relay that has not answered yet."""


@dataclass(frozen=True, slots=True)
class Served:
    """A relay's URL and node id."""

    url: str
    node: str


@asynccontextmanager
async def serving_channel(
    folder: Path,
    *,
    publisher: str,
    neighbours: Sequence[str],
    host: str,
    port: int,
    max_disk: int,
    certificate: Certificate | None,
    ca: Path | None,
    line: Line,
) -> AsyncIterator[Served]:
    """Relay what `publisher` signed for the duration of the block. Key and shards are kept in `folder`, with at
    most `max_disk` bytes. `neighbours` are URLs of relays to pull from. Raises StartError, PortTaken,
    BadCertificate, IdentityError."""
    known = _Neighbours(neighbours, run=channel_of(publisher))
    with locked(folder / "node.lock", f"folder {folder} (--data names another)"):
        async with make_http(ca=ca, line=line) as http:
            relay = Relay(
                _load_or_make_key(folder / "relay.key"),
                root=folder,
                run=channel_of(publisher),
                trainers=[publisher],
                is_member=lambda node: False,
                relays=known,
                http=http,
                settings=RelaySettings(max_disk=max_disk),
            )
            async with (
                serve(relay.app, host=host, port=port, certificate=certificate, line=line) as url,
                asyncio.TaskGroup() as group,
            ):
                beside = [group.create_task(relay.run()), group.create_task(known.run(http))]
                try:
                    yield Served(url, relay.node)
                finally:
                    for task in beside:
                        task.cancel()


def _load_or_make_key(path: Path) -> NodeKey:
    if not path.exists():
        NodeKey.generate().save(path)
    return NodeKey.load(path)


class _Neighbours:
    """The relays at the given URLs that have answered so far."""

    def __init__(self, urls: Sequence[str], *, run: str) -> None:
        self._urls, self._run = urls, run
        self._found: dict[str, RelayInfo] = {}

    def __call__(self) -> tuple[RelayInfo, ...]:
        return tuple(self._found.values())

    async def run(self, http: httpx.AsyncClient) -> None:
        """Query those that have not answered yet, until all have."""
        while len(self._found) < len(set(self._urls)):
            for url in self._urls:
                try:
                    if url not in self._found:
                        self._found[url] = await introduce(http, url, self._run)
                except (PeerError, TransportError) as error:
                    sys.stderr.write(f"{plain(str(error))}\n")
            await asyncio.sleep(LOOK_SECONDS)
