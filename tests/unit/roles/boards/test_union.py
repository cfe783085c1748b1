"""The union of a DHT and boards, over real relays on loopback."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from starlette.types import ASGIApp, Receive, Scope, Send

from dht.envelope import Envelope, to_bytes
from dht.errors import TransportError
from dht.memory import FakeClock, Faults, MemoryDirectory, MemoryNetwork
from roles.boards import UnionDirectory
from roles.boards.client import Poster
from roles.boards.wire import Question, frame, pack_question
from roles.relay import Board, RelaySettings
from roles.relay.board_routes import MOST_HELD_OPEN, ROWS_OF_A_REQUEST, BoardRoutes
from roles.relay.parts import RelayParts
from roles.shardcast.replies import RelayInfo
from tests.unit.roles.boards.test_board import KEY, NOW, RUN, make_row
from tests.unit.roles.shardcast.network import Network, running_network, spoiled, wait_until

LIMITS, LIFETIMES = {"node/1": 4096}, {"node/1": 90}


class SilentDht:
    """A DHT whose calls never return, as when p2pd hangs."""

    async def publish(self, row: Envelope) -> None:
        await asyncio.Event().wait()

    async def read(self, keys: Sequence[str]) -> Mapping[str, Sequence[Envelope]]:
        await asyncio.Event().wait()
        raise AssertionError


def make_board() -> Board:
    return Board(run=RUN, limits=LIMITS, lifetimes=LIFETIMES, clock=FakeClock(NOW))


def make_dht(*, is_down: bool = False) -> MemoryDirectory:
    network = MemoryNetwork(run=RUN, limits=LIMITS, lifetimes=LIFETIMES, clock=FakeClock(NOW))
    return MemoryDirectory(network, faults=Faults(is_down=is_down))


@asynccontextmanager
async def two_boards(root: Path) -> AsyncIterator[tuple[Network, list[Board]]]:
    boards = [make_board(), make_board()]
    async with running_network(root, relays=0) as network:
        for board in boards:
            await network.add_relay(board=board)
        yield network, boards


@asynccontextmanager
async def running_union(network: Network, dht: MemoryDirectory | SilentDht) -> AsyncIterator[UnionDirectory]:
    union = UnionDirectory(
        dht,
        relays=lambda: tuple(network.infos),
        http=network.http,
        run=RUN,
        limits=LIMITS,
        lifetimes=LIFETIMES,
        clock=FakeClock(NOW),
    )
    running = asyncio.create_task(union.run())
    await asyncio.sleep(0)
    try:
        yield union
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def read_until(union: UnionDirectory, count: int) -> list[Envelope]:
    """Rows under KEY, once this many are there."""
    async with asyncio.timeout(10):
        while len(rows := (await union.read([KEY]))[KEY]) < count:  # noqa: ASYNC110 - nobody tells us
            await asyncio.sleep(0.01)
    return rows


async def test_publish__to_the_dht_and_to_two_boards(tmp_path: Path) -> None:
    async with two_boards(tmp_path) as (network, boards), running_union(network, dht := make_dht()) as union:
        await union.publish(make_row(1))
        await wait_until(lambda: all(board.rows == 1 for board in boards))
        assert (await dht.read([KEY]))[KEY] == [make_row(1)]


async def test_read__the_dht_is_eclipsed__boards_have_it(tmp_path: Path) -> None:
    async with two_boards(tmp_path) as (network, _):
        async with running_union(network, make_dht()) as writer, running_union(network, make_dht()) as reader:
            await writer.publish(make_row(1))  # into a DHT that the reader cannot see
            assert await read_until(reader, 1) == [make_row(1)]
            await wait_until(lambda: reader.is_covered(KEY))


async def test_read__the_dht_hangs__boards_go_on_without_it(tmp_path: Path) -> None:
    async with two_boards(tmp_path) as (network, boards), running_union(network, SilentDht()) as union:
        for board in boards:
            board.put(to_bytes(make_row(1)))
        union._want([KEY])
        await wait_until(lambda: union.is_covered(KEY))
        async with asyncio.timeout(5):
            assert await read_until(union, 1) == [make_row(1)]


async def test_publish__the_dht_hangs__says_so_and_boards_have_it(tmp_path: Path) -> None:
    async with two_boards(tmp_path) as (network, boards), running_union(network, SilentDht()) as union:
        with pytest.raises(TransportError, match="boards hold the row"):
            await asyncio.wait_for(union.publish(make_row(1)), 5)
        assert any(board.rows for board in boards)


async def test_publish__again_waits_for_what_is_under_way(tmp_path: Path) -> None:
    class SlowDht(SilentDht):
        """A DHT that is slow, once."""

        calls, opened = 0, asyncio.Event()

        async def publish(self, row: Envelope) -> None:
            self.calls += 1
            await self.opened.wait()

    async with two_boards(tmp_path) as (network, _), running_union(network, dht := SlowDht()) as union:
        for _ in range(2):
            with pytest.raises(TransportError, match="boards hold the row"):
                await union.publish(make_row(1))
        dht.opened.set()
        await union.publish(make_row(1))
        await union.publish(make_row(1))
        assert dht.calls == 1
        await union.publish(make_row(1, sequence=NOW + 1))
        assert dht.calls == 2


class LateDht(SilentDht):
    """A DHT whose reads return only when released."""

    def __init__(self) -> None:
        self.opened = asyncio.Event()

    async def read(self, keys: Sequence[str]) -> Mapping[str, Sequence[Envelope]]:
        await self.opened.wait()
        return {key: [make_row(1)] for key in keys}


async def test_read__a_late_answer_of_the_dht_counts(tmp_path: Path) -> None:
    async with two_boards(tmp_path) as (network, _), running_union(network, dht := LateDht()) as union:
        union._want([KEY])
        await wait_until(lambda: union.is_covered(KEY))
        union._is_dht_poor, union._compared, union._dht_heard = True, float("-inf"), float("-inf")
        assert (await union.read([KEY]))[KEY] == []
        dht.opened.set()
        await wait_until(lambda: not union._is_dht_poor)
        assert union._dht_heard > 0
        assert [row for row, _ in union._held.rows(KEY, NOW)] == [make_row(1)]


async def test_choose__the_same_boards_whatever_the_order(tmp_path: Path) -> None:
    relays = [RelayInfo(f"r{number}", f"http://r{number}", number % 2 == 0) for number in range(60)]
    relays.append(RelayInfo("crooked", "ftp://r"))
    chosen = []
    async with running_network(tmp_path, relays=0) as network:
        for order in (relays, relays[::-1]):
            network.infos[:] = order
            async with running_union(network, make_dht()) as union:
                chosen.append([union._boards_of(str(number)) for number in range(9)])
                assert len(union._chosen) == 16
    assert chosen[0] == chosen[1]
    assert not any(relay.is_free or relay.node == "crooked" for boards in chosen[0] for relay in boards)


async def test_read__all_boards_are_dead__the_dht_alone(tmp_path: Path) -> None:
    async with running_network(tmp_path, relays=0) as network:
        network.infos.append(RelayInfo(make_row(7).signer, "http://127.0.0.1:9"))
        async with running_union(network, make_dht()) as union:
            await union.publish(make_row(1))
            assert (await union.read([KEY]))[KEY] == [make_row(1)]
            assert not union.is_covered(KEY)


async def test_read__neither__raises(tmp_path: Path) -> None:
    async with running_network(tmp_path, relays=0) as network:
        async with running_union(network, make_dht(is_down=True)) as union:
            with pytest.raises(TransportError):
                await union.read([KEY])


async def test_read__a_board_that_lies_adds_nothing(tmp_path: Path) -> None:
    async with running_network(tmp_path, relays=0) as network:
        board, true = make_board(), to_bytes(make_row(1))
        await network.add_relay(
            lambda app: spoiled(app, lambda body: body.replace(true, true[:-1] + b"!")), board=board
        )
        board.put(true)
        async with running_union(network, make_dht()) as union:
            union._want([KEY])
            await wait_until(lambda: union.is_covered(KEY))
            assert (await union.read([KEY]))[KEY] == []


async def test_read__a_board_begun_anew_is_read_from_its_beginning(tmp_path: Path) -> None:
    apps = list[ASGIApp]()

    def newest(app: ASGIApp) -> ASGIApp:
        async def relayed(scope: Scope, receive: Receive, send: Send) -> None:
            await apps[-1](scope, receive, send)

        apps.append(app)
        return relayed

    before, after = make_board(), make_board()
    async with running_network(tmp_path, relays=0) as network:
        await network.add_relay(newest, board=before)
        async with running_union(network, make_dht()) as union:
            before.put(to_bytes(make_row(1)))
            await read_until(union, 1)
            await network.add_relay(newest, board=after)
            network.infos.pop()
            after.put(to_bytes(make_row(2)))
            assert len(await read_until(union, 2)) == 2


async def test_offer__a_queue_has_an_end(tmp_path: Path) -> None:
    async with running_network(tmp_path, relays=0) as network:
        poster = Poster(RelayInfo("r", "http://127.0.0.1:9"), network.http)
        first = poster.offer(b"first")
        for number in range(4096):
            poster.offer(number.to_bytes(4, "big"))
        assert first.done()
        assert not first.result()


async def test_post_rows__refused_rows_count_as_requests(tmp_path: Path) -> None:
    async with running_network(tmp_path, relays=0) as network:
        settings = RelaySettings(rate=0.001, burst=11)
        await network.add_relay(board=make_board(), settings=settings)
        url, good = network.infos[0].url + "/board", to_bytes(make_row(1))
        answer = await network.http.post(url, content=frame([good, *[b"rubbish"] * 12, to_bytes(make_row(2))]))
        assert answer.content == bytes([1]) + bytes(13)
        assert (await network.http.post(url, content=frame([good]))).status_code == 429


async def test_post_rows__good_ones_are_not_free_either(tmp_path: Path) -> None:
    async with running_network(tmp_path, relays=0) as network:
        board = make_board()
        await network.add_relay(board=board, settings=RelaySettings(rate=0.001, burst=5))
        rows = [to_bytes(make_row(1, tail=f":{number}")) for number in range(32)]
        url = network.infos[0].url + "/board"
        codes = [(await network.http.post(url, content=frame(part))).status_code for part in (rows[:16], rows[16:])]
        assert (codes, board.rows) == ([200, 429], 16)


async def test_read_rows__whoever_makes_room_is_answered_with_what_there_is() -> None:
    routes, board = BoardRoutes(cast(RelayParts, SimpleNamespace(settings=None))), make_board()
    asked = Question(board.name, 0, (KEY,))
    async with asyncio.TaskGroup() as group:
        crowd = [group.create_task(routes._follow(board, asked, "crowd", 9.0)) for _ in range(MOST_HELD_OPEN)]
        await asyncio.sleep(0)
        late = group.create_task(routes._follow(board, asked, "node", 9.0))
        assert (await crowd[0]).rows == ()
        assert not late.done()
        board.put(to_bytes(make_row(1)))
        assert (await late).rows == (to_bytes(make_row(1)),)


async def test_read_rows__looking_through_many_rows_counts_as_requests(
    tmp_path: Path,
) -> None:
    async with running_network(tmp_path, relays=0) as network:
        board = make_board()
        await network.add_relay(board=board, settings=RelaySettings(rate=0.001, burst=4))
        for number in range(ROWS_OF_A_REQUEST):
            board.put(to_bytes(make_row(1, record_key=f"{RUN}/nodes/{number % 16}", tail=f":{number}")))
        keys = tuple(f"{RUN}/nodes/{number}" for number in range(16))
        url, whole = network.infos[0].url + "/board/read", pack_question(Question("", 0, keys))
        news = pack_question(Question(board.name, ROWS_OF_A_REQUEST, keys))
        codes = [(await network.http.post(url, content=asked)).status_code for asked in (whole, news, whole)]
        assert codes == [200, 200, 429]
