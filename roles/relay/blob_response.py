"""A blob, or a range of it, as an HTTP response."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

from starlette.requests import ClientDisconnect
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from roles.relay.connections import ZERO_COPY
from roles.shardcast.blobs import BlobReader

FILE_STEP = 2**25
"""Bytes handed to the server at once and then counted as served."""


class BlobResponse(StreamingResponse):
    """A range of a blob, sent zero-copy where the server can and in blocks elsewhere. Closes the blob
    however the response ends."""

    def __init__(
        self,
        reader: BlobReader,
        span: tuple[int, int],
        count: Callable[[int], None],
        status: int,
        headers: dict[str, str],
        media: str,
    ) -> None:
        super().__init__(self._counted(), status, headers, media)
        self._reader, self._span, self._count = reader, span, count

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            if ZERO_COPY in scope.get("extensions", {}):
                await self._send_file(send)
            else:
                await super().__call__(scope, receive, send)
        except ClientDisconnect:
            return
        finally:
            self._reader.close()

    async def _send_file(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        start, length = self._span
        for offset in range(start, start + length, FILE_STEP):
            step = min(FILE_STEP, start + length - offset)
            self._count(step)  # before sending: a client that has read everything may look at the count at once
            await send({"type": ZERO_COPY, "file": self._reader.file, "offset": offset, "count": step})
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _counted(self) -> AsyncIterator[bytes]:
        async for block in self._reader.blocks(*self._span):
            self._count(len(block))
            yield block
