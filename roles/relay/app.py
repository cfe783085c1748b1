"""The relay's HTTP interface: routes and the bounds of each. State lives in `Relay`'s parts, never here."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from functools import partial
from itertools import islice

import structlog
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from dht.errors import Malformed, PeerError
from roles.relay.blob_response import BlobResponse
from roles.relay.board_routes import BoardRoutes
from roles.relay.bodies import LONGEST_WAIT, address_of, digest_in_path, drain, read_body, waiting_time
from roles.relay.following import FollowedHoldings
from roles.relay.metrics import Counters, prometheus_text
from roles.relay.parts import RelayParts
from roles.relay.ranges import parse_range
from roles.relay.readers import Readers
from roles.relay.refusal import Refusal
from roles.relay.sponsor import MAX_FORM
from roles.relay.uploads import Uploads
from roles.relay.waiting import Waiting
from roles.shardcast.catalogue import KeptDelta
from roles.shardcast.errors import StaleCheckpoint, StoreFull, WrongBytes

log = structlog.get_logger("relay")

MOST_LISTED = 64
"""Checkpoints, or deltas, per response: an archive has thousands, and readers accept 64 KiB."""
MOST_HELD_OPEN = 512
"""Concurrent requests that wait for news, those to the board not counted. Both together are fewer
than a server's connections."""
Handler = Callable[[Request], Awaitable[Response]]


class RelayRoutes:
    """The handlers."""

    def __init__(self, parts: RelayParts) -> None:
        self._parts = parts
        self._settings, self._shelf, self._counters = parts.settings, parts.shelf, parts.counters
        self._uploads, self._board = Uploads(parts), BoardRoutes(parts)
        self._readers, self._waiting = Readers(), Waiting(MOST_HELD_OPEN)

    def app(self) -> ASGIApp:
        """The whole application. It never raises: every error becomes a response."""
        table: list[tuple[str, str, Handler]] = [
            ("/blobs/{digest}", "PUT", self._uploads.put_blob),
            ("/blobs/{digest}", "GET", self.get_blob),
            ("/manifests/{digest}", "PUT", self._uploads.put_manifest),
            ("/manifests/{digest}", "GET", self.get_manifest),
            ("/manifests/{digest}/shards", "GET", self.list_shards),
            ("/manifests", "GET", self.list_manifests),
            ("/deltas", "GET", self.list_deltas),
            ("/board", "POST", self._board.post_rows),
            ("/board/read", "POST", self._board.read_rows),
            ("/register", "POST", self.register),
            ("/spec", "GET", self.get_spec),
            ("/status", "GET", self.status),
            ("/metrics", "GET", self.metrics),
        ]
        routes = [Route(path, self._guard(handler), methods=[method]) for path, method, handler in table]
        app = Starlette(routes=routes, exception_handlers={404: _unknown_path, 405: _unknown_path, 500: _our_fault})
        return _Outermost(app, self._counters)

    async def get_blob(self, request: Request) -> Response:
        """A blob or a range of it; GET and HEAD. With X-Wait, the response waits for a listed
        shard that is still arriving."""
        digest = digest_in_path(request)
        store = self._shelf.store
        if digest not in store and self._shelf.catalogue.lists(digest):
            async with self._held(request):
                await store.wait_for(digest, LONGEST_WAIT)
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
        return BlobResponse(reader, (start, length), self._count_served, status, headers, media)

    def _count_served(self, size: int) -> None:
        self._counters.bytes_served += size

    async def get_manifest(self, request: Request) -> Response:
        """The envelope of a manifest, or of a delta's row, as it was signed. With X-Wait, the response waits for one
        that is not here yet."""
        name, catalogue = digest_in_path(request), self._shelf.catalogue
        async with self._held(request):
            while catalogue.parcel(name) is None:
                await catalogue.wait_for_change(LONGEST_WAIT)
        kept = catalogue.parcel(name)
        if kept is None:
            raise Refusal(404, "not_held", "this relay does not hold that manifest")
        return Response(kept.data, media_type="application/octet-stream")

    async def list_shards(self, request: Request) -> Response:
        """Which shards of a checkpoint or a delta are here, as a hexadecimal number whose bit i is shard i.

        With X-Wait, and X-Known giving the number of shards the client knows of, the response waits until that number
        changes. With X-Follow the response is a stream for that long, one line per change.
        """
        kept = self._shelf.catalogue.parcel(digest_in_path(request))
        if kept is None:
            raise Refusal(404, "not_held", "this relay does not hold that manifest")
        if "x-follow" in request.headers:
            every, holdings = (1 << len(kept.layout.manifest.shards)) - 1, partial(self._shelf.holdings, kept)
            return FollowedHoldings(self._held(request), holdings, every, self._shelf.store.wait_for_any)
        known = request.headers.get("x-known", "")
        async with self._held(request):
            while known == str((held := self._shelf.holdings(kept)).bit_count()):
                await self._shelf.store.wait_for_any(LONGEST_WAIT)
        return JSONResponse({"held": f"{held:x}"})

    async def list_manifests(self, request: Request) -> Response:
        """Checkpoints kept, newest first, with the count of shards that are here, and a token
        that identifies this state.

        With X-Wait, and that token as X-Known, the response waits until there is news. X-Held names the checkpoint that
        the client has: the client is counted under it, and all deltas of the chains that start from exactly that
        checkpoint are listed.
        """
        catalogue, held = self._shelf.catalogue, request.headers.get("x-held", "")
        with self._readers.counted(held):
            async with self._held(request):
                while request.headers.get("x-known") == catalogue.token:
                    await catalogue.wait_for_change(LONGEST_WAIT)
        body: dict[str, object] = {"token": catalogue.token, "manifests": self._checkpoints()}
        if held:
            body["deltas"] = [_listed(delta) for delta in catalogue.leading_on(held)[:MOST_LISTED]]
        return JSONResponse(body)

    async def list_deltas(self, request: Request) -> Response:
        """Deltas kept, newest first: which checkpoint each needs and which it leads to. Their rows are
        signed; this list is not."""
        deltas = self._shelf.catalogue.deltas()[:MOST_LISTED]
        return JSONResponse({"deltas": [_listed(delta) for delta in deltas]})

    async def register(self, request: Request) -> Response:
        """Sponsor a registration."""
        body = await read_body(request, limit=MAX_FORM, idle=self._settings.idle, total=self._settings.base)
        answer = await self._parts.sponsor.take(body, request.headers.get("x-work", ""))
        self._counters.sponsored += 1
        return JSONResponse({"sponsored": True, "result": answer})

    async def get_spec(self, request: Request) -> Response:
        """The run's spec; its SHA-256 is the run's id."""
        reader = await self._shelf.store.open(self._parts.run)
        if reader is None:
            raise Refusal(404, "not_held", "this relay does not hold the run's spec")
        try:
            data = b"".join([block async for block in reader.blocks(0, reader.size)])
        finally:
            reader.close()
        return Response(data, media_type="application/json")

    async def status(self, request: Request) -> Response:
        """What the relay holds and has done, as JSON."""
        store, counters = self._shelf.store, self._counters
        return JSONResponse(
            {
                "role": "relay",
                "node": self._parts.node,
                "run": self._parts.run,
                "uptime": int(time.monotonic() - self._parts.started),
                "disk_used": store.used,
                "disk_max": store.max_disk,
                "blobs": len(store),
                "board_rows": self._parts.board.rows if self._parts.board else 0,
                "checkpoints": self._checkpoints(),
                "subscribers": self._readers.by_version(self._shelf.catalogue),
                "bytes_served": counters.bytes_served,
                "bytes_received": counters.bytes_received,
                "bytes_pulled": counters.bytes_pulled,
                "uploads": counters.uploads,
                "refusals": dict(counters.refusals),
            }
        )

    async def metrics(self, request: Request) -> Response:
        """What the relay holds and has done, as Prometheus text."""
        store = self._shelf.store
        gauges = {
            "disk_used_bytes": store.used,
            "disk_max_bytes": store.max_disk,
            "blobs": len(store),
            "checkpoints": len(self._shelf.catalogue),
            "board_rows": self._parts.board.rows if self._parts.board else 0,
            "board_bytes": self._parts.board.total_bytes if self._parts.board else 0,
        }
        return PlainTextResponse(prometheus_text(self._counters, gauges), media_type="text/plain; version=0.0.4")

    def _held(self, request: Request) -> AbstractAsyncContextManager[None]:
        """Let the block wait for news, at most as long as the client would."""
        return self._waiting.held(address_of(request), waiting_time(request))

    def _checkpoints(self) -> list[dict[str, object]]:
        return [
            {
                "manifest": kept.digest,
                "term": kept.manifest.term,
                "step": kept.manifest.step,
                "shards": len(kept.manifest.shards),
                "held": self._shelf.held(kept),
            }
            for kept in islice(self._shelf.catalogue, MOST_LISTED)
        ]

    def _guard(self, handler: Handler) -> Handler:
        async def guarded(request: Request) -> Response:
            if not self._parts.rate.take(address_of(request)):
                refusal = Refusal(429, "too_many_requests", "too many requests from this address")
            else:
                try:
                    return await handler(request)
                except (Refusal, PeerError, StoreFull, OSError) as error:
                    refusal = _refusal_for(error)
                except ClientDisconnect:
                    return Response(status_code=400)  # the client is gone and will not read it
            self._counters.refusals[refusal.code] += 1
            is_read = request.method in ("GET", "HEAD") or await drain(request)
            return refusal.response(close=not is_read)

        return guarded


def _listed(kept: KeptDelta) -> dict[str, object]:
    return {"delta": kept.digest, "base": kept.delta.base, "target": kept.delta.target, "size": kept.delta.size}


class _Outermost:
    """Outermost middleware: counts responses, and swallows errors already answered with a 500, so
    that no traceback is printed."""

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
