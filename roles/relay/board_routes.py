"""A board's HTTP: rows come, rows go (`roles.boards.wire`)."""

from __future__ import annotations

import asyncio

from starlette.requests import Request
from starlette.responses import Response

from roles.boards.wire import MAX_POST, MAX_POSTED, MAX_QUESTION, Batch, Question, pack_batch, parse_question, unframe
from roles.relay.boards import Board
from roles.relay.bodies import address_of, read_body, waiting_time
from roles.relay.desk import Desk
from roles.relay.refusal import Refusal

MOST_HELD_OPEN = 256
"""Questions that wait for rows at once."""
AT_A_TIME = 8
"""Rows judged before others have their turn."""


class BoardRoutes:
    """The handlers; a relay without a board answers 404."""

    def __init__(self, desk: Desk) -> None:
        self._desk, self._settings = desk, desk.settings
        self._held_open = 0

    async def post_rows(self, request: Request) -> Response:
        """Signed rows for the board; a byte for each, 1 where it is held now. A row that is not costs its sender as much as
        a request; who has no more requests left has the rest not looked at."""
        board, sender = self._board(), address_of(request)
        body = await read_body(request, limit=MAX_POST, idle=self._settings.idle, total=self._settings.base)
        rows = unframe(body, most=MAX_POSTED)
        held = bytearray(len(rows))
        for place, row in enumerate(rows):
            held[place] = board.put(row)
            if not held[place] and not self._desk.rate.take(sender):
                break
            if place % AT_A_TIME == AT_A_TIME - 1:
                await asyncio.sleep(0)
        return Response(bytes(held), media_type="application/octet-stream")

    async def read_rows(self, request: Request) -> Response:
        """Rows of some keys that came after a serial. With X-Wait, the answer waits until there are any."""
        board = self._board()
        body = await read_body(request, limit=MAX_QUESTION, idle=self._settings.idle, total=self._settings.base)
        asked = parse_question(body)
        batch = await self._follow(board, asked, waiting_time(request))
        return Response(pack_batch(batch), media_type="application/octet-stream")

    async def _follow(self, board: Board, asked: Question, seconds: float) -> Batch:
        if seconds <= 0:
            return board.read(asked.keys, board=asked.board, since=asked.since)
        if self._held_open >= MOST_HELD_OPEN:
            raise Refusal(503, "busy", "too many questions are held open; ask again later")
        self._held_open += 1
        try:
            return await board.follow(asked.keys, board=asked.board, since=asked.since, seconds=seconds)
        finally:
            self._held_open -= 1

    def _board(self) -> Board:
        if self._desk.board is None:
            raise Refusal(404, "no_board", "this relay has no board")
        return self._desk.board
