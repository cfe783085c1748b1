"""The refusal of a request: HTTP status, a short code for programs, a sentence for people."""

from __future__ import annotations

from starlette.responses import JSONResponse


class Refusal(Exception):
    """Ends a request. `code` is stable; `detail` may change."""

    def __init__(self, status: int, code: str, detail: str) -> None:
        super().__init__(detail)
        self.status, self.code, self.detail = status, code, detail

    def response(self, *, close: bool = False) -> JSONResponse:
        """The JSON response; `close` when the request's body was not read to its end."""
        headers = {"Connection": "close"} if close else None
        return JSONResponse({"error": self.code, "detail": self.detail}, self.status, headers=headers)
