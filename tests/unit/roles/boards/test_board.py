from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from dht.envelope import Envelope, seal, to_bytes
from dht.errors import Malformed
from dht.identity import NodeKey
from dht.memory import FakeClock
from dht.rows import Caps
from roles.boards.wire import (
    Batch,
    Question,
    frame,
    pack_batch,
    pack_question,
    parse_batch,
    parse_question,
    posts,
    unframe,
)
from roles.relay import Board

RUN = "ab" * 32
NOW = 1_700_000_000_000
KEY = f"{RUN}/nodes/worker"


def make_row(number: int = 1, *, tail: str = "", size: int = 2, **fields: Any) -> Envelope:
    key = NodeKey(bytes([number]) * 32)
    valid: dict[str, Any] = {
        "run": RUN,
        "kind": "node/1",
        "record_key": KEY,
        "subkey": key.node + tail,
        "sequence": NOW,
        "expiration": NOW + 60_000,
        "payload": b"x" * size,
    }
    return seal(key, **(valid | fields))


def make_board(clock: Callable[[], int] = lambda: NOW, **changes: Any) -> Board:
    fields: dict[str, Any] = {"run": RUN, "limits": {"node/1": 4096}, "lifetimes": {"node/1": 90}, "clock": clock}
    return Board(**(fields | changes))


def rows_of(board: Board, *, since: int = 0, name: str = "") -> list[bytes]:
    return list(board.read([KEY], board=name, since=since).rows)


def test_put__read_in_the_order_they_came() -> None:
    board, rows = make_board(), [to_bytes(make_row(number)) for number in (3, 1, 2)]
    assert [board.put(row) for row in rows] == [True] * 3
    assert rows_of(board) == rows


def test_read__only_what_came_after_the_serial() -> None:
    board = make_board()
    board.put(to_bytes(make_row(1)))
    upto = board.read([KEY], board="", since=0).upto
    board.put(to_bytes(make_row(2)))
    assert rows_of(board, since=upto, name=board.name) == [to_bytes(make_row(2))]


def test_read__a_board_begun_anew_gives_everything() -> None:
    old, new = make_board(), make_board()
    for number in (1, 2):
        old.put(to_bytes(make_row(number)))
    new.put(to_bytes(make_row(3)))
    seen = old.read([KEY], board="", since=0)
    assert rows_of(new, since=seen.upto, name=seen.board) == [to_bytes(make_row(3))]


def test_read__a_newer_row_takes_the_olders_place() -> None:
    board, newer = make_board(), to_bytes(make_row(1, sequence=NOW + 1))
    board.put(to_bytes(make_row(1)))
    board.put(newer)
    assert rows_of(board) == [newer]


def test_read__long_answers_come_in_parts() -> None:
    board = make_board(limits={"node/1": 16_000}, caps=Caps(bytes_per_key=2**22))
    rows = [to_bytes(make_row(1, tail=f":{number}", size=15_000)) for number in range(100)]
    for row in rows:
        board.put(row)
    first = board.read([KEY], board="", since=0)
    assert 0 < len(first.rows) < 100
    assert [*first.rows, *rows_of(board, since=first.upto, name=first.board)] == rows


def test_put__what_the_dht_would_refuse_is_refused() -> None:
    board = make_board(membership=lambda row: row.signer != NodeKey(bytes([9]) * 32).node)
    good = make_row(1)
    refused = [b"", b"rubbish", to_bytes(make_row(1, run="cd" * 32)), to_bytes(make_row(1, expiration=NOW + 10**9))]
    refused += [to_bytes(make_row(9)), to_bytes(replace(good, payload=b"y")), to_bytes(make_row(1, size=5000))]
    assert [board.put(row) for row in refused] == [False] * len(refused)
    assert board.rows == 0


def test_put__a_flood_of_one_costs_the_flooder() -> None:
    board = make_board(caps=Caps(rows_per_key=50, bytes_per_key=2**14))
    for number in range(200):
        board.put(to_bytes(make_row(1, tail=f":{number}")))
    assert board.put(to_bytes(make_row(2)))
    assert board.rows <= 50
    assert to_bytes(make_row(2)) in rows_of(board)


def test_put__places_are_forgotten_with_their_rows() -> None:
    clock = FakeClock(NOW)
    board = make_board(clock)
    for number in range(4095):
        board.put(to_bytes(make_row(1, record_key=f"{RUN}/nodes/{number}")))
    clock.advance(100)
    board.put(to_bytes(make_row(2, sequence=NOW + 100_000, expiration=NOW + 160_000)))
    assert list(board._serials) == list(board._latest) == [KEY]


async def test_follow__waits_for_what_is_new() -> None:
    board = make_board()
    following = asyncio.create_task(board.follow([KEY], board=board.name, since=0, seconds=10))
    await asyncio.sleep(0)
    board.put(to_bytes(make_row(1)))
    assert (await following).rows == (to_bytes(make_row(1)),)


async def test_follow__rows_under_other_keys_do_not_end_it() -> None:
    board = make_board()
    board.put(to_bytes(make_row(1)))
    since = board.read([KEY], board="", since=0).upto
    following = asyncio.create_task(board.follow([KEY], board=board.name, since=since, seconds=10))
    await asyncio.sleep(0)
    board.put(to_bytes(make_row(1, record_key=f"{RUN}/nodes/relay")))
    await asyncio.sleep(0)
    assert not following.done()
    board.put(to_bytes(make_row(2)))
    assert (await following).rows == (to_bytes(make_row(2)),)


async def test_follow__ends_with_nothing() -> None:
    assert (await make_board().follow([KEY], board="", since=0, seconds=0.01)).rows == ()


def test_wire__there_and_back() -> None:
    batch, question = Batch("ab", 7, (b"one", b"", b"three")), Question("ab", 7, (KEY,))
    assert parse_batch(pack_batch(batch)) == batch
    assert parse_question(pack_question(question)) == question


@pytest.mark.parametrize(
    "data",
    [b"", b"\0\0\0\5ab", b"\0\0\0\2{}", frame([b'{"board": 1, "upto": 2}']), frame([b'{"board": "a", "upto": -1}'])],
)
def test_parse_batch__malformed(data: bytes) -> None:
    with pytest.raises(Malformed):
        parse_batch(data)


@pytest.mark.parametrize(
    "data", [b"", b"[]", b'{"board": "", "since": 0}', b'{"board": "", "since": true, "keys": []}', b"[" * 9000]
)
def test_parse_question__malformed(data: bytes) -> None:
    with pytest.raises(Malformed):
        parse_question(data)


def test_unframe__no_more_rows_than_asked_for() -> None:
    with pytest.raises(Malformed):
        unframe(frame([b"a"] * 3), most=2)


def test_posts__in_portions_that_a_board_takes() -> None:
    assert [len(portion) for portion in posts([b"x" * 16_000] * 40)] == [16, 16, 8]


async def test_follow__a_row_wakes_those_who_follow_its_key() -> None:
    board, woken = make_board(), f"{RUN}/nodes/other"
    async with asyncio.TaskGroup() as group:
        asked = [
            group.create_task(board.follow([key, key], board=board.name, since=0, seconds=10)) for key in (KEY, woken)
        ]
        await asyncio.sleep(0)
        board.put(to_bytes(make_row(1, record_key=woken)))
        assert (await asked[1]).rows
        assert list(board._followers) == [KEY]
        asked[0].cancel()
    assert not board._followers
