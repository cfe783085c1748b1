"""Which relays a node knows: those of the directory's records, and those named by the user."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

import httpx
import pytest

from dht.encoding import encode
from dht.envelope import Envelope, seal
from dht.errors import TransportError
from dht.identity import NodeKey
from node.join import JoinString
from node.relay_book import MAX_FREE, RelayBook, open_relays
from roles.messages import NodeRecord, nodes_key
from roles.shardcast.reading import MAX_REPLY

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


def record(key: NodeKey = RELAY, **changes: Any) -> Envelope:
    values = {"node": key.node, "role": "relay", "http": "http://one", "software": "x", "boot": "0" * 16}
    message = NodeRecord(**{**values, **changes})
    return seal(
        key,
        run=RUN,
        kind="node/1",
        record_key=nodes_key(RUN, message.role),
        subkey=key.node,
        sequence=1,
        expiration=2,
        payload=encode(message),
    )


def book(rows: Rows, *hints: str, status: Any = None) -> RelayBook:
    async def blocks() -> AsyncIterator[bytes]:
        yield b"" if status is None else json.dumps(status).encode()

    def reply(request: httpx.Request) -> httpx.Response:
        return httpx.Response(500 if status is None else 200, content=blocks())

    http = httpx.AsyncClient(transport=httpx.MockTransport(reply))
    return RelayBook(run=RUN, directory=rows, http=http, hints=hints)


async def test_refresh__relay_of_the_directory() -> None:
    known = book(Rows(record()))
    await known.refresh()
    assert [(info.node, info.url) for info in known()] == [(RELAY.node, "http://one")]


@pytest.mark.parametrize("changes", [{"state": "offline"}, {"http": ""}, {"role": "validator"}])
async def test_refresh__what_is_no_relay_to_use__dht_29(changes: dict[str, Any]) -> None:
    known = book(Rows(record(**changes)))
    await known.refresh()
    assert not known()


async def test_refresh__free_identities_are_few_and_take_nobodys_place() -> None:
    """Relay ids cost nothing: a crowd of them neither hides the registered ones nor displaces earlier ones."""
    member, early, crowd = RELAY, NodeKey(b"e" * 32), [NodeKey(bytes([number]) * 32) for number in range(1, 40)]
    rows = Rows(record(early))
    known = book(rows)
    known.is_member = lambda node: node == member.node
    await known.refresh()
    rows.rows = tuple(record(key) for key in (*crowd, early, member))
    await known.refresh()
    infos = known()
    assert (infos[0].node, infos[0].is_free) == (member.node, False)
    assert {info.is_free for info in infos[1:]} == {True}
    assert len(infos) == 1 + MAX_FREE
    assert early.node in {info.node for info in infos}


async def test_refresh__relay_the_user_named_needs_no_registration() -> None:
    known = book(Rows(record()), HINT, status={"node": RELAY.node, "run": RUN})
    await known.refresh()
    assert [info.is_free for info in known()] == [False]


@pytest.mark.parametrize(
    ("hints", "is_known"), [((), True), ((HINT,), False), (("http://10.0.0.7:80",), True)], ids=str
)
async def test_refresh__free_record_sends_nobody_into_his_own_network(hints: tuple[str, ...], is_known: bool) -> None:
    rows = Rows(record(http="http://169.254.169.254"))
    known = book(rows, *hints)
    await known.refresh()
    assert bool(known()) is is_known
    known.is_member = lambda node: True
    assert known(), "who is registered may be anywhere"


async def test_may_lead_inside__a_name_that_the_user_or_the_ledger_vouches_for() -> None:
    free, member = NodeKey(b"f" * 32), RELAY
    known = book(Rows(record(free, http="http://free.example"), record(member, http="http://member.example")), HINT)
    known.is_member = lambda node: node == member.node
    await known.refresh()
    assert known.may_lead_inside("hinted.example")
    assert known.may_lead_inside("member.example")
    assert not known.may_lead_inside("free.example")


async def test_open_relays__asks_nobody_inside_by_a_name_that_anybody_wrote() -> None:
    async with open_relays(Rows(), JoinString(RUN, relays=(HINT,)), ca=None) as (http, _):
        with pytest.raises(httpx.ConnectError, match="leads into this machine's own network"):
            await http.get("http://localhost:1/")


async def test_refresh__directory_down_keeps_what_is_known() -> None:
    rows = Rows(record())
    known = book(rows)
    await known.refresh()
    rows.is_down = True
    await known.refresh()
    assert len(known()) == 1


async def test_refresh__hinted_relay_is_asked_for_its_id() -> None:
    known = book(Rows(), HINT, status={"node": RELAY.node, "run": RUN})
    await known.refresh()
    assert [(info.node, info.url) for info in known()] == [(RELAY.node, HINT)]


@pytest.mark.parametrize("node", [7, "x" * 65, "evil", "", "\ud800", "\x1b]0;owned\x07", None, ["a"]])
async def test_refresh__hinted_address_that_names_no_node(node: Any) -> None:
    known = book(Rows(), HINT, status={"node": node, "run": RUN})
    await known.refresh()
    assert not known()


LONG = {"node": RELAY.node, "run": RUN, "rest": "x" * MAX_REPLY}


@pytest.mark.parametrize("status", [None, {}, {"node": RELAY.node}, [], "text", 7, LONG])
async def test_refresh__hinted_address_that_answers_nonsense(status: Any) -> None:
    known = book(Rows(), HINT, status=status)
    await known.refresh()
    assert not known()
