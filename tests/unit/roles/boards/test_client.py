"""How a reader handles a board's responses."""

from __future__ import annotations

import gzip
from collections.abc import AsyncIterator, Callable

import httpx
import pytest

from dht.errors import Malformed, TransportError
from dht.rows import Outcome
from roles.boards.client import ANSWER_SECONDS, STRANGER_SECONDS, Follower, call
from roles.boards.wire import LARGEST_BATCH, Batch, pack_batch
from roles.shardcast.replies import HELD_OPEN, RelayInfo

RELAY = RelayInfo("r" * 43, "http://board")


def make_http(
    body: bytes, *, headers: dict[str, str] | None = None, seen: list[httpx.Request] | None = None
) -> httpx.AsyncClient:
    """A client that gets this response to every request."""

    async def blocks() -> AsyncIterator[bytes]:
        yield body

    def reply(request: httpx.Request) -> httpx.Response:
        if seen is not None:
            seen.append(request)
        return httpx.Response(200, content=blocks(), headers=headers)

    return httpx.AsyncClient(transport=httpx.MockTransport(reply))


def make_follower(http: httpx.AsyncClient, took: Callable[[bytes], Outcome | None] | None = None) -> Follower:
    return Follower(RELAY, http, took or (lambda row: Outcome.STORED))


async def test_ask__a_bomb_is_not_decompressed() -> None:
    bomb = gzip.compress(bytes(2**24))
    seen: list[httpx.Request] = []
    async with make_http(bomb, headers={"Content-Encoding": "gzip"}, seen=seen) as http:
        assert await call(http, RELAY.url, b"", seconds=1, headers={}) == bomb
        with pytest.raises(Malformed):
            await make_follower(http)._ask(("key",), since=0, wait=0)
    assert seen[0].headers["Accept-Encoding"] == "identity"


async def test_call__too_long() -> None:
    async with make_http(bytes(LARGEST_BATCH + 1)) as http:
        with pytest.raises(TransportError, match="too long"):
            await call(http, RELAY.url, b"", seconds=1, headers={})


async def test_ask__a_question_held_open_is_waited_for() -> None:
    seen: list[httpx.Request] = []
    async with make_http(pack_batch(Batch("b", 1, ())), seen=seen) as http:
        await make_follower(http)._ask(("key",), since=0, wait=HELD_OPEN)
    assert seen[0].extensions["timeout"]["read"] == HELD_OPEN + ANSWER_SECONDS


async def test_ask__an_answer_of_rubbish_is_given_up() -> None:
    judged = list[bytes]()

    def judge(row: bytes) -> None:
        judged.append(row)

    async with make_http(pack_batch(Batch("b", 1, (b"rubbish",) * 100))) as http:
        with pytest.raises(Malformed):
            await make_follower(http, judge)._ask(("key",), since=0, wait=0)
    assert len(judged) == 17


@pytest.mark.parametrize(("outcome", "seconds"), [(Outcome.STORED, 0.0), (Outcome.STRANGER, 64 * STRANGER_SECONDS)])
async def test_ask__rows_of_strangers_are_judged_slowly(
    outcome: Outcome, seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A board can serve any number of valid ones, which must not take all of the reader's time."""
    waited = list[float]()

    async def wait(seconds: float) -> None:
        waited.append(seconds)

    async with make_http(b"") as http:
        follower = make_follower(http, lambda row: outcome)
        monkeypatch.setattr("roles.boards.client.asyncio.sleep", wait)
        await follower._take_all((b"row",) * 64)
    assert sum(waited) == pytest.approx(seconds)


async def test_read_whole__a_board_without_an_end() -> None:
    serial = 0

    async def blocks() -> AsyncIterator[bytes]:
        nonlocal serial
        serial += 1
        yield pack_batch(Batch("b", serial, (b"row",)))

    endless = httpx.MockTransport(lambda request: httpx.Response(200, content=blocks()))
    async with httpx.AsyncClient(transport=endless) as http:
        assert await make_follower(http)._read_whole(("key",)) == serial == 64
