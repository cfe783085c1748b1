"""The relays known now: from their node records in the DHT, and from the addresses in a join string or setting.

Any key can sign a record claiming to be a relay. Relays that the ledger knows, and those that the user named, come
first. Of the others only a limited number are kept, the earliest first.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path

import httpx
import structlog

from dht.envelope import Envelope
from dht.errors import PeerError, TransportError
from node.defaults import RELAY_REFRESH_SECONDS
from node.join import JoinString
from roles.messages import NodeRecord, nodes_key, open_row
from roles.ports import Directory
from roles.shardcast.pace import Line
from roles.shardcast.reading import read_status
from roles.shardcast.relay_http import RelayHttp, make_http
from roles.shardcast.replies import RelayInfo, is_inside, is_usable

log = structlog.get_logger()

FIRST_SECONDS = 0.3
"""Interval between refreshes while no relay is known."""
HINT_SECONDS = 5.0
"""Timeout for asking a hinted address for its node id."""
MAX_FREE = 8
"""Most relays whose ids cost nothing: enough to start with in a young run, too few for
a swarm of false ones to matter."""


def nobody(node: str) -> bool:
    """The membership rule before the ledger is known: nobody is a member."""
    return False


@asynccontextmanager
async def open_relays(
    directory: Directory, join: JoinString, *, ca: Path | None, line: Line | None = None
) -> AsyncIterator[tuple[RelayHttp, RelayBook]]:
    """A run's relays, and an HTTP client that connects only to them. Raises BadCertificate (`make_http`)."""
    async with make_http(ca=ca, line=line) as http:
        book = RelayBook(run=join.run, directory=directory, http=http, hints=join.relays)
        http.names.may_lead_inside = book.may_lead_inside
        yield http, book


class RelayBook:
    """Call it to get the relays known now. `refresh` reads the directory once; `run` does so until
    cancelled. `is_member` says whether an id is registered on the ledger or an operator's; the creator of
    the book sets it once that is known."""

    def __init__(self, *, run: str, directory: Directory, http: httpx.AsyncClient, hints: Sequence[str]) -> None:
        self._run, self._directory, self._http = run, directory, http
        self.is_member: Callable[[str], bool] = nobody
        self._hints = list(dict.fromkeys(hints))
        self._is_inside = not hints or any(is_usable(url) and is_inside(url) for url in hints)
        self._hinted: dict[str, RelayInfo] = {}
        self._found: dict[str, RelayInfo] = {}

    def __call__(self) -> Sequence[RelayInfo]:
        """Relays, each once: the user's own, members', and some of those whose ids are free."""
        named = {info.node for info in self._hinted.values()}
        known = {info.node: info for info in (*self._hinted.values(), *self._found.values())}
        costly = {node: info for node, info in known.items() if node in named or self.is_member(node)}
        free = [
            replace(info, is_free=True)
            for node, info in known.items()
            if node not in costly and self._may_ask(info.url)
        ]
        return [*costly.values(), *free[:MAX_FREE]]

    def _may_ask(self, url: str) -> bool:
        """Whether to connect to a URL that a stranger may have written. Addresses of this machine or its own network
        are refused, unless the run itself is there."""
        return is_usable(url) and (self._is_inside or not is_inside(url))

    def may_lead_inside(self, host: str) -> bool:
        """Whether this host name may resolve to a local address. Allowed for relays of the user and of members,
        and if the run itself is local."""
        known = [info.url for info in self() if not info.is_free]
        urls = [url for url in (*self._hints, *known) if is_usable(url)]
        return self._is_inside or host in {httpx.URL(url).raw_host.decode() for url in urls}

    def read_from(self, directory: Directory) -> None:
        """Read this directory from now on. Once relays are known, their boards carry the rows too."""
        self._directory = directory

    async def run(self) -> None:
        """Refresh periodically until cancelled."""
        while True:
            await self.refresh()
            await asyncio.sleep(RELAY_REFRESH_SECONDS if self._found else FIRST_SECONDS)

    async def refresh(self) -> None:
        """Read the relays' records once. On failure the known relays are kept."""
        for url in [url for url in self._hints if url not in self._hinted]:
            await self._ask(url)
        key = nodes_key(self._run, "relay")
        try:
            rows = (await self._directory.read([key])).get(key, ())
        except TransportError:
            return
        found = {info.node: info for row in rows if (info := self._relay_in(row)) is not None}
        before = [node for node in self._found if node in found]
        is_changed = len(before) != len(self._found) or len(before) != len(found)
        # Known relays stay in front, so that a crowd of new ones displaces nobody.
        self._found = {node: found[node] for node in dict.fromkeys((*before, *found))}
        if is_changed:
            log.info("relays.changed", relays=len(self()))

    def _relay_in(self, row: Envelope) -> RelayInfo | None:
        try:
            record = open_row(row, run=self._run, buckets=1)
        except PeerError:
            return None
        if not isinstance(record, NodeRecord) or record.role != "relay" or record.state != "online" or not record.http:
            return None
        return RelayInfo(record.node, record.http)

    async def _ask(self, url: str) -> None:
        """Learn the node id behind a hinted address; grants name the relay by its id."""
        with suppress(TransportError):
            self._hinted[url] = RelayInfo((await read_status(self._http, url, seconds=HINT_SECONDS)).node, url)
