"""Access control of a status server: local names and addresses only, read-only, and nothing
readable by other web pages."""

from __future__ import annotations

import ipaddress

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; font-src 'self'; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
}


class Guard:
    """An application behind these two checks, with headers that isolate its pages."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer or refuse a request."""

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(HEADERS)
            await send(message)

        await (_refusal(scope) or self._app)(scope, receive, sending)


def _refusal(scope: Scope) -> PlainTextResponse | None:
    if not is_local_name(Headers(scope=scope).get("host", "")):
        return PlainTextResponse("local callers only: ask by address, or as localhost\n", 403)
    if scope["method"] not in ("GET", "HEAD"):
        return PlainTextResponse("GET only\n", 405, headers={"Allow": "GET, HEAD"})
    return None


def is_local_name(host: str) -> bool:
    """Whether a Host header names this machine in a way that no other web page can imitate: an address, or localhost.

    A page whose own name is made to resolve here (DNS rebinding) still sends that name.
    """
    name, _, port = host.rpartition(":")
    name = (name if port.isdecimal() else host).strip("[]").lower()
    if not host or name == "localhost":  # HTTP/1.0 may omit it; a browser never does
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
