"""A board's HTTP: rows come, rows go (`roles.boards.wire`)."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from roles.boards.wire import MAX_POST, MAX_POSTED, MAX_QUESTION, pack_batch, parse_question, unframe
from roles.relay.boards import Board
from roles.relay.bodies import read_body, waiting_time
from roles.relay.desk import Desk
from roles.relay.refusal import Refusal


class BoardRoutes:
    """The handlers; a relay without a board answers 404."""

    def __init__(self, desk: Desk) -> None:
        self._desk, self._settings = desk, desk.settings

    async def post_rows(self, request: Request) -> Response:
        """Signed rows for the board; a byte for each, 1 where it is held now."""
        board = self._board()
        body = await read_body(request, limit=MAX_POST, idle=self._settings.idle, total=self._settings.base)
        held = bytes(board.put(row) for row in unframe(body, most=MAX_POSTED))
        return Response(held, media_type="application/octet-stream")

    async def read_rows(self, request: Request) -> Response:
        """Rows of some keys that came after a serial. With X-Wait, the answer waits until there are any."""
        board = self._board()
        body = await read_body(request, limit=MAX_QUESTION, idle=self._settings.idle, total=self._settings.base)
        asked = parse_question(body)
        wait = waiting_time(request)
        batch = await board.follow(asked.keys, board=asked.board, since=asked.since, seconds=wait)
        return Response(pack_batch(batch), media_type="application/octet-stream")

    def _board(self) -> Board:
        if self._desk.board is None:
            raise Refusal(404, "no_board", "this relay has no board")
        return self._desk.board
