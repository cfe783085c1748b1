"""A streamed response listing the shards held, with a new line for each further one, so that clients need not poll."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager

from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from roles.relay.bodies import LONGEST_WAIT

BETWEEN_LINES = 0.02
"""Minimum seconds between lines; changes in between are reported together."""


def holdings_line(held: int) -> bytes:
    """The shards held, as a line of JSON: bit i is shard i."""
    return json.dumps({"held": f"{held:x}"}).encode() + b"\n"


class FollowedHoldings(StreamingResponse):
    """The lines of one response. It ends once all of `every` are held, or when its waiting place is given up."""

    def __init__(
        self,
        place: AbstractAsyncContextManager[None],
        holdings: Callable[[], int],
        every: int,
        changed: Callable[[float], Awaitable[None]],
    ) -> None:
        super().__init__((), media_type="application/x-ndjson", headers={"X-Accel-Buffering": "no"})
        self._place, self._holdings, self._every, self._changed = place, holdings, every, changed

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        async with self._place:
            await self._follow(send)
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _follow(self, send: Send) -> None:
        said = -1
        while said != self._every:
            held = self._holdings()
            if held == said:
                await self._changed(LONGEST_WAIT)
                continue
            said = held
            await send({"type": "http.response.body", "body": holdings_line(held), "more_body": True})
            await asyncio.sleep(BETWEEN_LINES)
