"""HTTP routes of a relay's board: posting and reading rows (`roles.boards.wire`)."""

from __future__ import annotations

import asyncio

from starlette.requests import Request
from starlette.responses import Response

from roles.boards.wire import MAX_POST, MAX_POSTED, MAX_QUESTION, Batch, Question, pack_batch, parse_question, unframe
from roles.relay.boards import Board
from roles.relay.bodies import address_of, read_body, waiting_time
from roles.relay.parts import RelayParts
from roles.relay.refusal import Refusal
from roles.relay.waiting import Waiting

MOST_HELD_OPEN = 256
"""Concurrent requests that wait for rows; see `Waiting`."""
AT_A_TIME = 8
"""Rows judged before other tasks get a turn. As many cost one request, since each is a signature to verify."""
ROWS_OF_A_REQUEST = 2048
"""Scanning this many rows costs one request."""


class BoardRoutes:
    """The handlers; a relay without a board answers 404."""

    def __init__(self, parts: RelayParts) -> None:
        self._parts, self._settings = parts, parts.settings
        self._waiting = Waiting(MOST_HELD_OPEN)

    async def post_rows(self, request: Request) -> Response:
        """Take signed rows for the board. The response has one byte per row, 1 if it is now held. Every eight rows
        cost the sender one request, and so does each row that is not held; when its requests are used up, the
        remaining rows are not examined."""
        board, sender = self._board(), address_of(request)
        body = await read_body(request, limit=MAX_POST, idle=self._settings.idle, total=self._settings.base)
        rows = unframe(body, most=MAX_POSTED)
        if not self._parts.rate.take(sender, len(rows) // AT_A_TIME):
            raise Refusal(429, "too_many_requests", "this address has sent too many rows")
        held = bytearray(len(rows))
        for place, row in enumerate(rows):
            held[place] = board.put(row)
            if not held[place] and not self._parts.rate.take(sender):
                break
            if place % AT_A_TIME == AT_A_TIME - 1:
                await asyncio.sleep(0)
        return Response(bytes(held), media_type="application/octet-stream")

    async def read_rows(self, request: Request) -> Response:
        """Rows of some keys that came after a serial number. With X-Wait, the response waits until there are any."""
        board = self._board()
        body = await read_body(request, limit=MAX_QUESTION, idle=self._settings.idle, total=self._settings.base)
        asked = parse_question(body)
        sender = address_of(request)
        weight = board.weight(asked.keys, board=asked.board, since=asked.since)
        if not self._parts.rate.take(sender, weight // ROWS_OF_A_REQUEST):
            raise Refusal(429, "too_many_requests", "this address has asked for too many rows")
        batch = await self._follow(board, asked, sender, waiting_time(request))
        return Response(pack_batch(batch), media_type="application/octet-stream")

    async def _follow(self, board: Board, asked: Question, sender: str, seconds: float) -> Batch:
        async with self._waiting.held(sender, seconds):
            return await board.follow(asked.keys, board=asked.board, since=asked.since, seconds=seconds)
        return board.read(asked.keys, board=asked.board, since=asked.since)  # its place was given to another request

    def _board(self) -> Board:
        if self._parts.board is None:
            raise Refusal(404, "no_board", "this relay has no board")
        return self._parts.board
