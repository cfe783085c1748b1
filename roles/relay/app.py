"""The relay's HTTP face: routes, and what each may take and give. State lives in `Relay`'s parts, never here."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from functools import partial

import structlog
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from dht.envelope import Envelope, from_bytes
from dht.errors import Malformed, PeerError
from dht.identity import NodeId
from roles.messages import UploadGrant
from roles.relay.bodies import body_blocks, declared_length, digest_in_path, drain, read_body
from roles.relay.limits import AddressRate, GrantBook, Members, Quota
from roles.relay.metrics import MAX_CODES, Counters, prometheus_text
from roles.relay.ranges import parse_range
from roles.relay.refusal import Refusal
from roles.relay.settings import RelaySettings
from roles.relay.sponsor import MAX_FORM, SponsorDesk
from roles.shardcast.catalogue import KeptCheckpoint
from roles.shardcast.errors import StaleCheckpoint, StoreFull, WrongBytes
from roles.shardcast.grants import open_grant
from roles.shardcast.manifest import MAX_MANIFEST_BYTES
from roles.shardcast.shelf import Shelf
from roles.shardcast.store import BlobReader, BlobWriter

log = structlog.get_logger("relay")

LONGEST_WAIT = 10.0
MANIFESTS_AT_ONCE = 4
Handler = Callable[[Request], Awaitable[Response]]


@dataclass(frozen=True, slots=True)
class Desk:
    """What the routes work with. `noticed` is told of each manifest and each pushed shard."""

    run: str
    node: str
    settings: RelaySettings
    shelf: Shelf
    members: Members
    grants: GrantBook
    quota: Quota
    rate: AddressRate
    sponsor: SponsorDesk
    counters: Counters
    noticed: Callable[[], None]
    started: float


class RelayRoutes:
    """The handlers."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._settings, self._shelf, self._counters = desk.settings, desk.shelf, desk.counters
        self._manifests = asyncio.Semaphore(MANIFESTS_AT_ONCE)
        self._uploading: Counter[NodeId] = Counter()

    def app(self) -> ASGIApp:
        """The whole application. It never raises: every fault is an answer."""
        table: list[tuple[str, str, Handler]] = [
            ("/blobs/{digest}", "PUT", self.put_blob),
            ("/blobs/{digest}", "GET", self.get_blob),
            ("/manifests/{digest}", "PUT", self.put_manifest),
            ("/manifests/{digest}", "GET", self.get_manifest),
            ("/manifests", "GET", self.list_manifests),
            ("/register", "POST", self.register),
            ("/spec", "GET", self.get_spec),
            ("/status", "GET", self.status),
            ("/metrics", "GET", self.metrics),
        ]
        routes = [Route(path, self._guard(handler), methods=[method]) for path, method, handler in table]
        app = Starlette(routes=routes, exception_handlers={404: _unknown_path, 405: _unknown_path, 500: _our_fault})
        return _Outermost(app, self._counters)

    async def put_blob(self, request: Request) -> Response:
        """Store a blob under a grant: hashed and counted while it streams to disk."""
        digest, size = digest_in_path(request), declared_length(request)
        row, grant = self._open_grant(request, digest, size)
        listed = self._shelf.catalogue.shard_size(digest)
        is_shard = row.signer in self._desk.members.trainers and listed is not None
        if is_shard and listed != size:
            raise Refusal(400, "wrong_length", f"the manifest says that this shard has {listed} bytes")
        if not is_shard:
            self._check_member(row.signer, size)
        if digest in self._shelf.store:
            return JSONResponse({"stored": digest})
        if not is_shard:
            self._desk.quota.charge(row.signer, size)
        self._desk.grants.use(row, grant)
        self._desk.rate.give_back(_address(request))
        await (self._receive_shard if is_shard else partial(self._receive_blob, row.signer))(request, digest, size)
        self._counters.uploads += 1
        return JSONResponse({"stored": digest}, 201)

    def _open_grant(self, request: Request, digest: str, size: int) -> tuple[Envelope, UploadGrant]:
        header = request.headers.get("x-grant")
        if header is None:
            raise Refusal(401, "grant_missing", "an upload needs a grant in the X-Grant header")
        row, grant = open_grant(header, run=self._desk.run)
        self._desk.grants.check(row, grant, blob=digest, size=size)
        return row, grant

    def _check_member(self, node: NodeId, size: int) -> None:
        self._desk.members.check(node)
        if size > self._settings.max_blob:
            raise Refusal(413, "too_large", f"a blob has at most {self._settings.max_blob} bytes here")
        if self._uploading.total() >= self._settings.uploads_at_once:
            raise Refusal(503, "busy", "too many uploads at once; try another relay")
        if self._uploading[node] >= self._settings.uploads_of_one:
            raise Refusal(429, "too_many_uploads", "this node has too many uploads under way")

    async def _receive_shard(self, request: Request, digest: str, size: int) -> None:
        self._desk.noticed()
        await self._receive(request, self._shelf.begin(digest, size, is_shard=True), size)
        self._desk.noticed()

    async def _receive_blob(self, node: NodeId, request: Request, digest: str, size: int) -> None:
        writer: BlobWriter | None = None
        self._uploading[node] += 1
        try:
            writer = self._shelf.begin(digest, size, is_shard=False)
            await self._receive(request, writer, size)
        finally:
            self._uploading[node] -= 1
            if not self._uploading[node]:
                del self._uploading[node]
            self._desk.quota.refund(node, size - min(size, writer.received if writer else 0))

    async def _receive(self, request: Request, writer: BlobWriter, size: int) -> None:
        async with writer:
            await self._fill(request, writer, size)
            await writer.commit()

    async def _fill(self, request: Request, writer: BlobWriter, size: int) -> None:
        total = self._settings.total(size)
        async for block in body_blocks(request, idle=self._settings.idle, total=total):
            self._counters.bytes_received += len(block)
            await writer.write(block)

    async def get_blob(self, request: Request) -> Response:
        """A blob or a range of it; GET and HEAD. With X-Wait, a listed shard still on its way is waited for."""
        digest = digest_in_path(request)
        store = self._shelf.store
        if digest not in store and self._shelf.catalogue.lists(digest):
            await store.wait_for(digest, _waiting_time(request))
        size = store.size(digest)
        if size is None:
            raise Refusal(404, "not_held", "this relay does not hold that blob")
        headers = {
            "ETag": f'"{digest}"',
            "Accept-Ranges": "bytes",
            "Cache-Control": "public, max-age=31536000, immutable",
        }
        span = parse_range(request.headers.get("range"), size)
        start, length = span or (0, size)
        if span:
            headers["Content-Range"] = f"bytes {start}-{start + length - 1}/{size}"
        headers["Content-Length"] = str(length)
        status, media = 206 if span else 200, "application/octet-stream"
        if request.method == "HEAD":
            return Response(status_code=status, headers=headers, media_type=media)
        reader = await store.open(digest)
        if reader is None:
            raise Refusal(404, "not_held", "this relay does not hold that blob")
        return _BlobResponse(reader, self._counted(reader.blocks(start, length)), status, headers, media)

    async def _counted(self, blocks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        async for block in blocks:
            self._counters.bytes_served += len(block)
            yield block

    async def put_manifest(self, request: Request) -> Response:
        """Take a manifest signed by a trainer; its shards may come then, or are pulled.

        The trainer's grant is looked at before a byte of the body: strangers cannot hold the few places here.
        """
        digest, size = digest_in_path(request), declared_length(request)
        row, grant = self._open_grant(request, digest, size)
        if row.signer not in self._desk.members.trainers:
            raise Refusal(403, "not_allowed", "only a trainer of the run uploads manifests")
        self._desk.grants.use(row, grant)
        async with self._manifests:
            data = await read_body(
                request,
                limit=MAX_MANIFEST_BYTES,
                idle=self._settings.idle,
                total=self._settings.total(MAX_MANIFEST_BYTES),
            )
            kept = await asyncio.to_thread(self._judge, data)
            if kept.digest != digest:
                raise Refusal(400, "wrong_digest", "the manifest has another digest than the path says")
            await self._shelf.add(kept)
        self._desk.noticed()
        log.info("manifest.accepted", step=kept.manifest.step, manifest=digest)
        return JSONResponse({"stored": digest}, 201)

    def _judge(self, data: bytes) -> KeptCheckpoint:
        return self._shelf.catalogue.check(from_bytes(data, limit=MAX_MANIFEST_BYTES))

    async def get_manifest(self, request: Request) -> Response:
        """The manifest's envelope as it was signed."""
        kept = self._shelf.catalogue.find(digest_in_path(request))
        if kept is None:
            raise Refusal(404, "not_held", "this relay does not hold that manifest")
        return Response(kept.data, media_type="application/octet-stream")

    async def list_manifests(self, request: Request) -> Response:
        """Checkpoints kept, newest first, with the count of shards that are here."""
        return JSONResponse({"manifests": self._checkpoints()})

    async def register(self, request: Request) -> Response:
        """Sponsor a registration."""
        body = await read_body(request, limit=MAX_FORM, idle=self._settings.idle, total=self._settings.base)
        answer = await self._desk.sponsor.take(body, request.headers.get("x-work", ""))
        self._counters.sponsored += 1
        return JSONResponse({"sponsored": True, "result": answer})

    async def get_spec(self, request: Request) -> Response:
        """The run's spec; its SHA-256 is the run's id."""
        reader = await self._shelf.store.open(self._desk.run)
        if reader is None:
            raise Refusal(404, "not_held", "this relay does not hold the run's spec")
        try:
            data = b"".join([block async for block in reader.blocks(0, reader.size)])
        finally:
            reader.close()
        return Response(data, media_type="application/json")

    async def status(self, request: Request) -> Response:
        """What the relay holds and did, as JSON."""
        store, counters = self._shelf.store, self._counters
        return JSONResponse(
            {
                "role": "relay",
                "node": self._desk.node,
                "run": self._desk.run,
                "uptime": int(time.monotonic() - self._desk.started),
                "disk_used": store.used,
                "disk_max": store.max_disk,
                "blobs": len(store),
                "checkpoints": self._checkpoints(),
                "bytes_served": counters.bytes_served,
                "bytes_received": counters.bytes_received,
                "bytes_pulled": counters.bytes_pulled,
                "uploads": counters.uploads,
                "refusals": dict(counters.refusals),
            }
        )

    async def metrics(self, request: Request) -> Response:
        """The same for Prometheus."""
        store = self._shelf.store
        gauges = {
            "disk_used_bytes": store.used,
            "disk_max_bytes": store.max_disk,
            "blobs": len(store),
            "checkpoints": len(self._shelf.catalogue),
        }
        return PlainTextResponse(prometheus_text(self._counters, gauges), media_type="text/plain; version=0.0.4")

    def _checkpoints(self) -> list[dict[str, object]]:
        return [
            {
                "manifest": kept.digest,
                "term": kept.manifest.term,
                "step": kept.manifest.step,
                "shards": len(kept.manifest.shards),
                "held": self._shelf.held(kept),
            }
            for kept in self._shelf.catalogue
        ]

    def _guard(self, handler: Handler) -> Handler:
        async def guarded(request: Request) -> Response:
            if not self._desk.rate.take(_address(request)):
                refusal = Refusal(429, "too_many_requests", "too many requests from this address")
            else:
                try:
                    return await handler(request)
                except (Refusal, PeerError, StoreFull, OSError) as error:
                    refusal = _refusal_for(error)
                except ClientDisconnect:
                    return Response(status_code=400)  # nobody reads it
            if len(self._counters.refusals) < MAX_CODES:
                self._counters.refusals[refusal.code] += 1
            is_read = request.method in ("GET", "HEAD") or await drain(request)
            return refusal.response(close=not is_read)

        return guarded


class _BlobResponse(StreamingResponse):
    """Closes the blob however the response ends."""

    def __init__(
        self, reader: BlobReader, blocks: AsyncIterator[bytes], status: int, headers: dict[str, str], media: str
    ) -> None:
        super().__init__(blocks, status, headers, media)
        self._reader = reader

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._reader.close()


class _Outermost:
    """Counts answers, and ends what is left of errors here: answered with a 500 by then, and no traceback is printed."""

    def __init__(self, app: ASGIApp, counters: Counters) -> None:
        self._app, self._counters = app, counters

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return

        async def counted(message: Message) -> None:
            if message["type"] == "http.response.start":
                self._counters.requests[message["status"]] += 1
            await send(message)

        try:
            await self._app(scope, receive, counted)
        except Exception as error:
            log.error("request.failed", path=scope["path"][:80], error=f"{type(error).__name__}: {error}"[:300])


def _refusal_for(error: Exception) -> Refusal:
    match error:
        case Refusal():
            return error
        case StoreFull():
            return Refusal(507, "store_full", str(error))
        case StaleCheckpoint():
            return Refusal(409, "stale", str(error))
        case WrongBytes():
            return Refusal(400, "wrong_bytes", str(error))
        case Malformed():
            return Refusal(400, "malformed", str(error))
        case PeerError():
            return Refusal(403, "not_allowed", str(error))
    return Refusal(507, "store_full", f"the disk refused: {error}"[:200])


async def _unknown_path(request: Request, error: Exception) -> Response:
    status = getattr(error, "status_code", 404)
    code = "unknown_path" if status == 404 else "method_not_allowed"
    return Refusal(status, code, "there is nothing here by that name and method").response()


async def _our_fault(request: Request, error: Exception) -> Response:
    return Refusal(500, "internal", "the relay failed; its log says why").response(close=True)


def _address(request: Request) -> str:
    return request.client.host if request.client else ""


def _waiting_time(request: Request) -> float:
    try:
        seconds = float(request.headers.get("x-wait", "0"))
    except ValueError:
        return 0.0
    return min(max(seconds, 0.0), LONGEST_WAIT) if seconds == seconds else 0.0
