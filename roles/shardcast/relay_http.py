"""The HTTP client of every node that talks to relays."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Any

import httpx

from roles.shardcast.errors import BadCertificate
from roles.shardcast.lanes import Lanes
from roles.shardcast.names import Names
from roles.shardcast.pace import Line
from roles.shardcast.wide_reads import WideTransport

CONNECTIONS = 64


class RelayHttp(httpx.AsyncClient):
    """The client every node uses: httpx for small requests, lanes for shards. Closing it closes both.

    Proxy variables are ignored, because relays on loopback must be reachable (BOOT-06).
    """

    def __init__(self, *, context: ssl.SSLContext, line: Line, names: Names) -> None:
        limits = httpx.Limits(max_connections=CONNECTIONS, max_keepalive_connections=CONNECTIONS, keepalive_expiry=4.0)
        super().__init__(trust_env=False, follow_redirects=False, transport=WideTransport(limits, context, line, names))
        self.lanes, self.names = Lanes(names=names, context=context, line=line), names

    async def aclose(self) -> None:
        """Abort all transfers and close."""
        self._end()
        await super().aclose()

    async def __aexit__(self, *error: Any) -> None:
        self._end()
        await super().__aexit__(*error)

    def _end(self) -> None:
        self.lanes.close()
        self.names.close()


def make_http(*, ca: Path | None = None, line: Line | None = None, names: Names | None = None) -> RelayHttp:
    """Make a client. Certificates are checked against the system's authorities and those in the file `ca`, if given.
    Transfers keep to the pace of `line`.

    Raises BadCertificate when the file cannot be read or holds none.
    """
    context = ssl.create_default_context()
    try:
        if ca is not None:
            context.load_verify_locations(ca.expanduser())
    except OSError as error:
        raise BadCertificate(f"no certificates of authorities in {ca}: {error.strerror or error}") from error
    return RelayHttp(context=context, line=line or Line(), names=names or Names())
