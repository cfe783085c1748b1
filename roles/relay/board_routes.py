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
"""Questions that wait for rows at once; see `Waiting`."""
AT_A_TIME = 8
"""Rows judged before others have their turn; so many cost as much as a request, since each is a signature to verify."""
ROWS_OF_A_REQUEST = 2048
"""Looking through so many costs as much as a request."""


class BoardRoutes:
    """The handlers; a relay without a board answers 404."""

    def __init__(self, parts: RelayParts) -> None:
        self._parts, self._settings = parts, parts.settings
        self._waiting = Waiting(MOST_HELD_OPEN)

    async def post_rows(self, request: Request) -> Response:
        """Signed rows for the board; a byte for each, 1 where it is held now. Eight cost their sender as much as a request,
        and so does each that is not held; who has no more requests left has the rest not looked at."""
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
        """Rows of some keys that came after a serial. With X-Wait, the answer waits until there are any."""
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
        return board.read(asked.keys, board=asked.board, since=asked.since)  # somebody else needed its place

    def _board(self) -> Board:
        if self._parts.board is None:
            raise Refusal(404, "no_board", "this relay has no board")
        return self._parts.board
