"""Which relays a node knows: those of the directory's records, and those it was told of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import httpx
import pytest

from dht.encoding import encode
from dht.envelope import Envelope, seal
from dht.errors import TransportError
from dht.identity import NodeKey
from node.relay_book import RelayBook
from roles.messages import NodeRecord, nodes_key

RUN = "ab" * 32
RELAY = NodeKey(b"r" * 32)
HINT = "http://hinted.example:80"


class Rows:
    """A directory with these rows under every key."""

    def __init__(self, *rows: Envelope) -> None:
        self.rows = rows
        self.is_down = False

    async def publish(self, row: Envelope) -> None:
        raise TransportError("read only")

    async def read(self, keys: Sequence[str]) -> Mapping[str, Sequence[Envelope]]:
        if self.is_down:
            raise TransportError("no peer answered")
        return dict.fromkeys(keys, self.rows)


def record(**changes: Any) -> Envelope:
    values = {"node": RELAY.node, "role": "relay", "http": "http://one", "software": "x", "boot": "0" * 16}
    message = NodeRecord(**{**values, **changes})
    return seal(
        RELAY,
        run=RUN,
        kind="node/1",
        record_key=nodes_key(RUN, message.role),
        subkey=RELAY.node,
        sequence=1,
        expiration=2,
        payload=encode(message),
    )


def book(rows: Rows, *hints: str, status: Any = None) -> RelayBook:
    def reply(request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, json=status) if status is not None else httpx.Response(500)

    http = httpx.AsyncClient(transport=httpx.MockTransport(reply))
    return RelayBook(run=RUN, directory=rows, http=http, hints=hints)


async def test_refresh__relay_of_the_directory() -> None:
    known = book(Rows(record()))
    await known.refresh()
    assert [(info.node, info.url) for info in known()] == [(RELAY.node, "http://one")]


@pytest.mark.parametrize("changes", [{"state": "offline"}, {"http": ""}, {"role": "validator"}])
async def test_refresh__what_is_no_relay_to_use(changes: dict[str, str]) -> None:
    known = book(Rows(record(**changes)))
    await known.refresh()
    assert not known()


async def test_refresh__directory_down_keeps_what_is_known() -> None:
    rows = Rows(record())
    known = book(rows)
    await known.refresh()
    rows.is_down = True
    await known.refresh()
    assert len(known()) == 1


async def test_refresh__hinted_relay_is_asked_for_its_id() -> None:
    known = book(Rows(), HINT, status={"node": RELAY.node})
    await known.refresh()
    assert [(info.node, info.url) for info in known()] == [(RELAY.node, HINT)]


@pytest.mark.parametrize("status", [None, {"node": 7}, {"node": "x" * 65}, [], "text"])
async def test_refresh__hinted_address_that_answers_nonsense(status: Any) -> None:
    known = book(Rows(), HINT, status=status)
    await known.refresh()
    assert not known()
