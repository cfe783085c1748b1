"""Real relays over real HTTP on loopback: valid by default, each test spoils one thing."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import httpx
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from dht.envelope import Envelope
from dht.identity import NodeKey
from roles.messages import CheckpointManifest
from roles.relay import Relay, RelaySettings, serve
from roles.shardcast.client import RelayClient
from roles.shardcast.exchange import TransferLimits
from roles.shardcast.manifest import build_manifest, seal_manifest
from roles.shardcast.relay_http import make_http
from roles.shardcast.replies import RelayInfo

RUN = "ab" * 32
TRAINER = NodeKey(b"t" * 32)
WORKER = NodeKey(b"w" * 32)
QUICK = TransferLimits(
    connect=1.0, idle=1.0, base=2.0, stall=2.0, news=0.2, fan_out_from=0, fan_out=0.05, bulk=1
)  # every blob is sent over a lane, as large shards are
ZERO = "0" * 64


def make_checkpoint(folder: Path, *, size: int = 300_000, seed: int = 0) -> Path:
    """A directory of three files (one empty) with `size` random bytes in total."""
    folder.mkdir(parents=True, exist_ok=True)
    data = random.Random(seed).randbytes(size)
    cut = size * 2 // 3
    (folder / "model.safetensors").write_bytes(data[:cut])
    (folder / "config.json").write_bytes(data[cut:])
    (folder / "added_tokens.json").write_bytes(b"")
    return folder


def make_manifest(folder: Path, *, step: int = 1, term: int = 1, shard_size: int = 65_536) -> CheckpointManifest:
    return build_manifest(folder, run=RUN, term=term, step=step, parent=ZERO, shard_size=shard_size)


def make_envelope(folder: Path, *, key: NodeKey = TRAINER, step: int = 1, shard_size: int = 65_536) -> Envelope:
    return seal_manifest(key, make_manifest(folder, step=step, shard_size=shard_size))


@dataclass
class Network:
    """Running relays, and how to reach them."""

    root: Path
    http: httpx.AsyncClient
    stack: AsyncExitStack
    infos: list[RelayInfo] = field(default_factory=list)
    relays: list[Relay] = field(default_factory=list)
    served: dict[str, Any] = field(default_factory=dict)
    bulk: int = QUICK.bulk

    async def add_relay(self, wrap: Callable[[ASGIApp], ASGIApp] = lambda app: app, **changes: object) -> Relay:
        """Add a relay and serve it; `wrap` may make it misbehave."""
        arguments: dict[str, object] = {
            "root": self.root / f"relay{len(self.relays)}",
            "run": RUN,
            "trainers": [TRAINER.node],
            "is_member": lambda node: node == WORKER.node,
            "relays": lambda: tuple(self.infos),
            "http": self.http,
            "settings": RelaySettings(poll=0.05, pull_stall=3.0, bulk=1),
        } | changes
        relay = Relay(NodeKey(os.urandom(32)), **arguments)  # type: ignore[arg-type]
        url = await self.stack.enter_async_context(serve(wrap(relay.app), host="127.0.0.1", port=0, **self.served))
        self.relays.append(relay)
        self.infos.append(RelayInfo(relay.node, url))
        return relay

    def asked_first(self, index: int) -> Callable[[], tuple[RelayInfo, ...]]:
        """The relays as known to a client that asks this one first; their ids cost nothing."""
        return lambda: tuple(replace(info, is_free=number != index) for number, info in enumerate(self.infos))

    def start(self, group: asyncio.TaskGroup) -> list[asyncio.Task[None]]:
        """Let every relay pull; cancel the returned tasks to stop."""
        return [group.create_task(relay.run()) for relay in self.relays]

    def client(
        self,
        key: NodeKey = WORKER,
        *,
        relays: Callable[[], tuple[RelayInfo, ...]] | None = None,
        news: float = QUICK.news,
        fan_out: float = QUICK.fan_out,
    ) -> RelayClient:
        """A client of all relays, or of those given."""
        return RelayClient(
            key,
            run=RUN,
            trainers=[TRAINER.node],
            relays=relays or (lambda: tuple(self.infos)),
            http=self.http,
            limits=replace(QUICK, news=news, fan_out=fan_out, bulk=self.bulk),
        )


@asynccontextmanager
async def running_network(root: Path, *, relays: int = 2) -> AsyncIterator[Network]:
    """Run this many relays, stopped at the end."""
    async with make_http() as http, AsyncExitStack() as stack:
        network = Network(root, http, stack)
        for _ in range(relays):
            await network.add_relay()
        yield network


async def wait_until(condition: Callable[[], bool], *, seconds: float = 10.0) -> None:
    """Yield to the loop until the condition is true."""
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110 - what is waited for lies inside the relays
            await asyncio.sleep(0.01)


def spoiled(app: ASGIApp, spoil: Callable[[bytes], bytes]) -> ASGIApp:
    """The same relay, but its response bodies pass through `spoil`, block by block."""

    async def spoiling(scope: Scope, receive: Receive, send: Send) -> None:
        async def changed(message: Message) -> None:
            if message["type"] == "http.response.body" and message.get("body"):
                message = {**message, "body": spoil(message["body"])}
            await send(message)

        await app({**scope, "extensions": {}}, receive, changed)

    return spoiling


def stalling(app: ASGIApp, *, after: int, method: str = "GET") -> ASGIApp:
    """The same relay, but its responses stop after `after` bytes and never end. For
    uploads nothing is ever answered."""

    async def stalled(scope: Scope, receive: Receive, send: Send) -> None:
        sent = 0

        async def slow(message: Message) -> None:
            nonlocal sent
            sent += len(message.get("body", b""))
            if message["type"] == "http.response.body" and sent > after:
                await asyncio.Event().wait()
            await send(message)

        if method == "PUT" and scope["method"] == "PUT" and scope["path"].startswith("/blobs"):
            await asyncio.Event().wait()
        await app({**scope, "extensions": {}}, receive, slow if scope["method"] == method else send)

    return stalled


def dripping(app: ASGIApp, *, every: float = 0.01) -> ASGIApp:
    """The same relay, but it sends responses one byte at a time, just often enough not to count as silent."""

    async def dripped(scope: Scope, receive: Receive, send: Send) -> None:
        async def slow(message: Message) -> None:
            if message["type"] == "http.response.body":
                for byte in message.get("body", b""):
                    await send({"type": "http.response.body", "body": bytes([byte]), "more_body": True})
                    await asyncio.sleep(every)
                message = {**message, "body": b""}
            await send(message)

        await app({**scope, "extensions": {}}, receive, slow if scope["method"] == "GET" else send)

    return dripped


def dying_after(app: ASGIApp, *, shards: int) -> ASGIApp:
    """A relay that accepts this many shards and then breaks every connection that brings another."""
    taken = 0

    async def dying(scope: Scope, receive: Receive, send: Send) -> None:
        nonlocal taken
        is_upload = scope["type"] == "http" and scope["method"] == "PUT" and scope["path"].startswith("/blobs/")
        if is_upload and taken >= shards:
            await receive()
            return  # no response: the server closes the connection
        taken += is_upload
        await app(scope, receive, send)

    return dying


def swallowing(app: ASGIApp) -> ASGIApp:
    """The same relay, but it confirms every upload and keeps none."""

    async def swallowed(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] == "PUT":
            while (await receive()).get("more_body"):
                pass
            await JSONResponse({"stored": "it"}, 201)(scope, receive, send)
        else:
            await app(scope, receive, send)

    return swallowed


def offering(app: ASGIApp, *, manifest: str, answered: Callable[[], None] = lambda: None) -> ASGIApp:
    """The same relay, but it repeatedly announces, without delay, a checkpoint that it does not have."""

    async def offered(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] == "/manifests":
            listed = [{"manifest": manifest, "term": 1, "step": 9, "shards": 1, "held": 1}]
            body = {"token": os.urandom(8).hex(), "manifests": listed}
            await JSONResponse(body)(scope, receive, send)
            answered()
        else:
            await app(scope, receive, send)

    return offered
