"""What a node or a testnet serves to viewers: the page, its live rows, the log, the status and the metrics.

Read-only and free of secrets. The relay's server, which it shares, limits clients, time and bytes.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp

from node.defaults import STATUS_TIMEOUT_SECONDS, STATUS_WATCHERS
from node.errors import ConfigError
from node.status.guard import Guard
from node.status.metrics import CONTENT_TYPE, format_metrics
from node.status.pages import page_files
from node.status.story import Story
from node.status.stream import Streams
from roles.messages import ROLES
from roles.relay.connections import ConnectionLimits
from roles.relay.server import PortTaken, serve

Status = Mapping[str, Any]
Read = Callable[[], Status]
More = Callable[[], Awaitable[str]]
Refresh = Callable[[], None]
LIMITS = ConnectionLimits(head=STATUS_TIMEOUT_SECONDS, reader=30.0, total=128, per_address=96)
STEPS_TOLD, SUBMISSIONS_TOLD = 200, 100
PATHS = "there is / (the page), /status.json, /metrics and /events\n"


@asynccontextmanager
async def status_server(
    port: int,
    read: Read,
    *,
    story: Story,
    refresh: Refresh | None = None,
    more_metrics: More | None = None,
    host: str = "127.0.0.1",
) -> AsyncIterator[int]:
    """Serve for the duration of the block; yields the port. Raises ConfigError when it is taken.

    `refresh` is called before every response. `more_metrics` returns others' metrics (p2pd's), in bounded time.
    """
    app = Guard(StatusRoutes(read, story=story, refresh=refresh, more_metrics=more_metrics).app())
    async with AsyncExitStack() as stack:
        try:
            page = serve(app, host=host, port=port, limits=LIMITS, flag="--status-port")
            url = await stack.enter_async_context(page)
        except PortTaken as error:
            raise ConfigError(f"the status page: {error}") from error
        stack.callback(story.close)  # before the server stops, so that the streams end by themselves
        yield int(url.rpartition(":")[2])


class StatusRoutes:
    """The handlers."""

    def __init__(
        self, read: Read, *, story: Story, refresh: Refresh | None = None, more_metrics: More | None = None
    ) -> None:
        self._read, self._story, self._more = read, story, more_metrics
        self._refresh = refresh or (lambda: None)
        self._streams = Streams(story, refresh=self._refresh)
        self._watchers = 0

    def app(self) -> ASGIApp:
        """The routes, without the guard."""
        table = {
            "/": self.page,
            "/page/{path:path}": self.page,
            "/status": self.status,
            "/status.json": self.status,
            "/metrics": self.metrics,
            "/events": self.events,
            "/live": self.live,
        }
        return Starlette(
            routes=[Route(path, handler, methods=["GET"]) for path, handler in table.items()],
            exception_handlers={404: _unknown},
        )

    async def page(self, request: Request) -> Response:
        """A file of the page."""
        file = page_files().get(request.path_params.get("path", "index.html"))
        return Response(file.body, media_type=file.media) if file else _unknown(request, None)

    async def status(self, request: Request) -> Response:
        """The whole status, once."""
        self._refresh()
        text = json.dumps({**self._read(), **status_of_story(self._story)}, default=str)
        return Response(text + "\n", media_type="application/json")

    async def metrics(self, request: Request) -> Response:
        """Prometheus text."""
        self._refresh()
        text = format_metrics(self._read(), self._story)
        if self._more is not None:
            text += await self._more()
        return PlainTextResponse(text, media_type=CONTENT_TYPE)

    async def events(self, request: Request) -> Response:
        """The log, as a stream."""
        return self._stream(self._streams.log(request.headers.get("last-event-id")))

    async def live(self, request: Request) -> Response:
        """Every row as it changes, as a stream."""
        return self._stream(self._streams.rows(request.headers.get("last-event-id")))

    def _stream(self, frames: AsyncIterator[str]) -> Response:
        if self._watchers >= STATUS_WATCHERS:
            return PlainTextResponse("too many watch already\n", 503, headers={"Retry-After": "10"})
        return StreamingResponse(self._counted(frames), media_type="text/event-stream")

    async def _counted(self, frames: AsyncIterator[str]) -> AsyncIterator[str]:
        self._watchers += 1
        try:
            async for frame in frames:
                yield frame
        finally:
            self._watchers -= 1


def status_of_story(story: Story) -> Status:
    """A story's contribution to a status: facts, nodes, wallets, and the newest steps and submissions."""
    tables = story.tables
    return {
        "facts": tables.get("facts", "all"),
        "nodes": sorted((row for _, row in tables.rows("node")), key=_by_role),
        "refusals": {key: row["count"] for key, row in tables.rows("reason")},
        "wallets": [row for _, row in tables.rows("wallet")],
        "steps": sorted((row for _, row in tables.rows("step")), key=lambda row: int(row["step"]))[-STEPS_TOLD:],
        "submissions": [row for _, row in tables.rows("submission")][-SUBMISSIONS_TOLD:],
    }


def _by_role(row: Mapping[str, Any]) -> tuple[int, int, str]:
    """Sort key: trainer, workers, validators, relays; within a role by number, the tenth after the ninth."""
    role, name = str(row.get("role", "")), str(row.get("name", ""))
    return ROLES.index(role) if role in ROLES else len(ROLES), len(name), name


def _unknown(request: Request, error: Exception | None) -> Response:
    return PlainTextResponse(PATHS, 404)
