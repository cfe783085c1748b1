"""The reader: few requests, and no trace of blocks removed by a re-org."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from ledger.block_source import BATCH_REQUESTS
from ledger.chain_journal import Genesis
from ledger.errors import LedgerError, LedgerUnavailable
from ledger.events import TOPICS
from ledger.evm import DevChain
from ledger.json_rpc import RpcError
from ledger.reader import MAX_BATCHES, OVERLAP, RunReader
from ledger.rpc import Rpc
from ledger.wallet import Domain
from tests.contract.harness import ADDRESSES, RUN, START, Registry, digest, make_registration
from tests.unit.ledger.test_sender import Lying, ScriptedRpc


class Branches:
    """An RPC whose chain can be swapped for a rival one."""

    def __init__(self, registry: Registry) -> None:
        self.rpc = ScriptedRpc(registry)
        self.drop_logs = False
        self.is_down = False
        self.refused = 0
        self.answers: dict[str, Any] = {}  # lies, by method
        self.most_blocks = 2000  # in one request for logs

    async def call(self, method: str, *parameters: Any) -> Any:
        await asyncio.sleep(0)
        if self.is_down:
            self.refused += 1
            raise LedgerUnavailable("no RPC end-point answers")
        if self.drop_logs and method == "eth_getLogs":
            return []
        if method in self.answers:
            return self.answers[method]
        if method == "eth_getLogs":
            asked = int(parameters[0]["toBlock"], 16) - int(parameters[0]["fromBlock"], 16) + 1
            if asked > self.most_blocks:
                raise RpcError(-32005, "query returned more than 10000 results", b"")
        return await self.rpc.call(method, *parameters)


def make_registry(*steps: Callable[[Registry], object]) -> Registry:
    """A registry with the run in block 2, then one block a step. Equal steps give equal hashes."""
    registry = Registry()
    registry.create_run()
    for step in steps:
        step(registry)
    return registry


def commit(step: int, manifest: object = None) -> Callable[[Registry], object]:
    return lambda registry: registry.commit(step, manifest=digest(manifest) if manifest else None)


def make_reader(branches: Branches) -> RunReader:
    return RunReader(branches, domain=branches.rpc.registry.domain, run=RUN, first_block=2)


async def manifests(reader: RunReader) -> list[str]:
    await reader.refresh(now=True)
    return [each.manifest for each in (await reader.events()).commits]


async def test_refresh__logs_only_when_the_head_moved() -> None:
    branches = Branches(make_registry(commit(0)))
    reader = make_reader(branches)
    await reader.refresh(now=True)
    branches.rpc.calls.clear()
    for _ in range(5):
        await reader.refresh(now=True)
        await reader.events()
    assert branches.rpc.calls == ["eth_getBlockByNumber"] * 5
    branches.rpc.registry.commit(1)
    assert await manifests(reader) == [digest(0), digest(1)]
    assert branches.rpc.calls.count("eth_getLogs") == 1


async def test_refresh__a_burst_of_reads_is_one_request() -> None:
    branches = Branches(make_registry())
    reader = make_reader(branches)
    for _ in range(20):
        await reader.head()
        await reader.events()
        await reader.registrations()
    assert len(branches.rpc.calls) <= 4


@pytest.mark.parametrize("common", [0, 1, 2])
async def test_refresh__follows_a_reorganisation(common: int) -> None:
    shared = [commit(step) for step in range(common)]
    branches = Branches(make_registry(*shared, commit(common, "lost"), lambda registry: registry.skip(1)))
    reader = make_reader(branches)
    lost_head = await reader.head()
    assert (await manifests(reader))[-1] == digest("lost")
    rival = [commit(common, "won"), *[lambda registry: registry.skip(1)] * 2]
    branches.rpc = ScriptedRpc(make_registry(*shared, *rival))
    expected = [*(digest(step) for step in range(common)), digest("won")]
    assert await manifests(reader) == expected
    assert await reader.block(lost_head.number) != lost_head


async def test_registrations__forget_what_a_reorganisation_took() -> None:
    register = make_registration(Registry().domain)
    branches = Branches(make_registry(lambda registry: registry.register(register)))
    reader = make_reader(branches)
    assert list(await reader.registrations()) == [register.node]
    branches.rpc = ScriptedRpc(make_registry(commit(0), commit(1)))
    await reader.refresh(now=True)
    assert await reader.registrations() == {}


async def test_refresh__a_lagging_end_point_takes_nothing_back() -> None:
    branches = Branches(make_registry(commit(0)))
    reader = make_reader(branches)
    await reader.refresh(now=True)
    ahead = branches.rpc
    branches.rpc = ScriptedRpc(make_registry(commit(0), commit(1)))
    assert await manifests(reader) == [digest(0), digest(1)]
    branches.rpc = ahead
    assert await manifests(reader) == [digest(0), digest(1)]


async def test_refresh__a_chain_begun_anew_is_read_anew() -> None:
    branches = Branches(make_registry(commit(0), commit(1)))
    reader = make_reader(branches)
    await reader.refresh(now=True)
    other = make_registry()
    other.chain = DevChain(Genesis(START + 1, ADDRESSES), clock=lambda: 0)
    branches.rpc = ScriptedRpc(other)
    assert await manifests(reader) == []
    assert (await reader.head()).number == 0


async def test_refresh__logs_that_trail_the_head_are_read_again() -> None:
    branches = Branches(make_registry(commit(0)))
    reader = make_reader(branches)
    await reader.refresh(now=True)
    branches.drop_logs = True
    branches.rpc.registry.commit(1)
    assert await manifests(reader) == [digest(0)]
    branches.drop_logs = False
    branches.rpc.registry.skip(1)
    assert await manifests(reader) == [digest(0), digest(1)]


async def test_refresh__a_gap_is_unavailable_then_healed__chain_16() -> None:
    branches = Branches(make_registry(commit(0), *[lambda registry: registry.skip(1)] * 20))
    branches.drop_logs = True
    reader = make_reader(branches)
    assert await manifests(reader) == []
    branches.drop_logs = False
    branches.rpc.registry.commit(1)
    with pytest.raises(LedgerUnavailable, match="left out logs"):
        await reader.refresh(now=True)
    assert await manifests(reader) == [digest(0), digest(1)]


@pytest.mark.parametrize(
    "logs",
    [
        None,
        {},
        ["0x"],
        [None],
        [{}],
        [{"topics": []}],
        [{"topics": [["0x"]], "data": "0x", "blockNumber": "0x1"}],
        [{"topics": [next(iter(TOPICS))], "data": None, "blockNumber": "0x1"}],
        [{"topics": [next(iter(TOPICS)), None, None, None], "data": "0x", "blockNumber": "0x1"}],
        [{"topics": [next(iter(TOPICS)), "0x", "0x", "0x"], "data": "0x" + "ff" * 320, "blockNumber": "0x1"}],
        [{"topics": [next(iter(TOPICS))], "data": "0x", "blockNumber": "zero"}],
    ],
)
async def test_refresh__malformed_logs_are_an_error_of_ours_and_change_nothing(logs: Any) -> None:
    branches = Branches(make_registry(commit(0)))
    reader = make_reader(branches)
    await reader.refresh(now=True)
    branches.rpc.registry.commit(1)
    branches.answers["eth_getLogs"] = logs
    with pytest.raises(LedgerError):
        await reader.refresh(now=True)
    branches.answers.clear()
    assert await manifests(reader) == [digest(0), digest(1)]


async def test_block__another_block_than_the_one_asked_for() -> None:
    branches = Branches(make_registry(commit(0), commit(1)))
    reader = make_reader(branches)
    head = await reader.head()
    branches.answers["eth_getBlockByNumber"] = await branches.call("eth_getBlockByNumber", "latest", False)
    with pytest.raises(LedgerUnavailable, match="another block"):
        await reader.block(1)
    branches.answers.clear()
    block = await reader.block(1)
    assert block is not None
    assert (block.number, await reader.head()) == (1, head)


async def test_refresh__an_outage_is_waited_for_once() -> None:
    branches = Branches(make_registry())
    reader = make_reader(branches)
    await reader.refresh(now=True)
    branches.is_down = True
    outcomes = await asyncio.gather(*(reader.refresh(now=True) for _ in range(5)), return_exceptions=True)
    assert [type(each) for each in outcomes] == [LedgerUnavailable] * 5
    assert branches.refused == 1
    branches.is_down = False
    await reader.refresh(now=True)


async def test_registrations__as_of_a_block() -> None:
    request = make_registration(Registry().domain)
    branches = Branches(make_registry(lambda registry: registry.register(request)))
    reader = make_reader(branches)
    assert list(await reader.registrations(until=3)) == [request.node]
    assert await reader.registrations(until=2) == {}


async def test_registrations__as_of_a_block_are_counted_once_until_something_is_read() -> None:
    """Whoever judges tallies requests those of one block repeatedly, and a run may have many thousands."""
    request = make_registration(Registry().domain)
    branches = Branches(make_registry(lambda registry: registry.register(request)))
    reader = make_reader(branches)
    first = await reader.registrations(until=3)
    assert await reader.registrations(until=3) is first
    branches.rpc = ScriptedRpc(make_registry(commit(0), commit(1)))
    await reader.refresh(now=True)
    assert await reader.registrations(until=3) == {}


@pytest.mark.parametrize("most", [1, 3])
async def test_refresh__asks_for_fewer_blocks_where_so_many_are_refused(most: int) -> None:
    branches = Branches(make_registry(*[commit(step) for step in range(7)]))
    branches.most_blocks = most
    assert await manifests(make_reader(branches)) == [digest(step) for step in range(7)]


async def test_refresh__an_end_point_that_gives_no_logs_is_unavailable() -> None:
    branches = Branches(make_registry(commit(0)))
    branches.most_blocks = 0
    with pytest.raises(LedgerUnavailable, match="refused to give logs"):
        await make_reader(branches).refresh(now=True)


NO_NUMBERS: tuple[Any, ...] = (None, "", "0x", "-0x5", 5, [], hex(2**63), "0x" + "f" * 64, "0x" + "f" * 65)


@pytest.mark.parametrize(
    "lie",
    [
        *[None, {}, [], "0x"],
        *[{name: lie} for name in ("number", "timestamp") for lie in NO_NUMBERS],
        *[{"hash": lie} for lie in (None, 5, "0x", "0xab", "ab" * 32)],
    ],
)
async def test_refresh__what_is_no_block_changes_nothing__chain_25(lie: Any) -> None:  # CHAIN-25
    branches = Branches(make_registry(commit(0)))
    reader = make_reader(branches)
    head = await reader.head()
    branches.rpc.registry.commit(1)
    newest = await branches.call("eth_getBlockByNumber", "latest", False)
    branches.answers["eth_getBlockByNumber"] = {**newest, **lie} if isinstance(lie, dict) and lie else lie
    branches.rpc.calls.clear()
    with pytest.raises(LedgerUnavailable, match="the RPC end-point answered"):
        await reader.refresh(now=True)
    assert "eth_getLogs" not in branches.rpc.calls
    assert await reader.block(head.number) == head
    branches.answers.clear()
    assert await manifests(reader) == [digest(0), digest(1)]


@pytest.mark.parametrize("number", ["0x1", "0x63", "-0x5", "0x" + "f" * 64])
async def test_refresh__logs_of_blocks_not_asked_for_are_not_believed__chain_25(number: str) -> None:
    branches = Branches(make_registry(commit(0)))
    reader = make_reader(branches)
    await reader.refresh(now=True)
    branches.rpc.registry.commit(1)
    query = {"fromBlock": "0x2", "toBlock": "0x4", "topics": []}
    logs = [{**each, "blockNumber": number} for each in await branches.rpc.call("eth_getLogs", query)]
    branches.answers["eth_getLogs"] = logs
    with pytest.raises(LedgerUnavailable):
        await reader.refresh(now=True)
    branches.answers.clear()
    assert await manifests(reader) == [digest(0), digest(1)]


class MadeUp(Branches):
    """Claims a newest block far beyond its chain, and invents whatever is in between. With
    `number` None it tells the truth."""

    def __init__(self, registry: Registry, number: int | None) -> None:
        super().__init__(registry)
        self.number = number
        self.log_requests = 0

    async def call(self, method: str, *parameters: Any) -> Any:
        self.log_requests += method == "eth_getLogs"
        if self.number is not None and method == "eth_getBlockByNumber":
            asked = self.number if parameters[0] == "latest" else int(parameters[0], 16)
            newest = await super().call(method, "latest", False)
            if asked > int(newest["number"], 16):
                return {**newest, "number": hex(asked), "hash": f"0x{asked:064x}", "parentHash": f"0x{asked - 1:064x}"}
        return await super().call(method, *parameters)


@pytest.mark.parametrize("confirmations", [1, 3])
@pytest.mark.parametrize("number", [2**63 - 1, 2**62, 10**8])
async def test_refresh__a_newest_block_that_is_made_up_costs_bounded_work_and_shows_nothing__chain_26(
    number: int, confirmations: int
) -> None:  # CHAIN-26
    branches = MadeUp(make_registry(commit(0), commit(1), commit(2)), None)
    domain, passed_over = branches.rpc.registry.domain, []
    reader = RunReader(
        branches,
        domain=domain,
        run=RUN,
        first_block=2,
        confirmations=confirmations,
        pass_over=lambda: passed_over.append(1),
    )
    head, before = await reader.head(), await manifests(reader)
    branches.log_requests, branches.number = 0, number
    for _ in range(2):
        with pytest.raises(LedgerUnavailable, match="are read up to block"):
            await reader.refresh(now=True)
        with pytest.raises(LedgerUnavailable):
            await reader.head()
    assert branches.log_requests <= 4 * MAX_BATCHES * BATCH_REQUESTS
    assert len(passed_over) == 4
    branches.number = None
    assert await reader.head() == head
    assert await manifests(reader) == before
    branches.rpc.registry.commit(3)
    assert len(await manifests(reader)) == len(before) + 1


async def test_refresh__a_newest_block_too_large_for_any_chain_is_not_read_towards__chain_26() -> None:
    branches = MadeUp(make_registry(commit(0)), 2**256 - 1)
    with pytest.raises(LedgerUnavailable, match="where a number belongs"):
        await make_reader(branches).refresh(now=True)
    assert branches.log_requests == 0


class Stalling(Branches):
    """Returns logs of one block at a time, and fails after a number of requests; or never returns
    any, and `give_up` is called."""

    def __init__(self, registry: Registry) -> None:
        super().__init__(registry)
        self.most_blocks = 1
        self.left: int | None = None
        self.give_up: Callable[[], None] | None = None
        self.read: list[int] = []

    async def call(self, method: str, *parameters: Any) -> Any:
        if method == "eth_getLogs":
            if self.left == 0:
                if self.give_up:
                    self.give_up()
                    await asyncio.Event().wait()
                raise LedgerUnavailable("no RPC end-point answers")
            self.left = None if self.left is None else self.left - 1
        answer = await super().call(method, *parameters)
        if method == "eth_getLogs":
            self.read.append(int(parameters[0]["fromBlock"], 16))
        return answer

    async def look(self, reader: RunReader, *, hangs: bool) -> None:
        """Look like the observer, which gives up what takes too long."""
        async with asyncio.timeout(None) as patience:
            self.give_up = functools.partial(patience.reschedule, 0) if hangs else None
            await reader.refresh(now=True)


@pytest.mark.parametrize("hangs", [False, True])
async def test_refresh__a_long_history_is_read_in_batches_that_stay_read__chain_26(hangs: bool) -> None:
    """The observer allows 15 s per look; what was read by then must not be read again."""
    steps = 8 * BATCH_REQUESTS
    branches = Stalling(make_registry(*[commit(step) for step in range(steps)]))
    reader = make_reader(branches)
    starts = []
    for _ in range(3):
        branches.left, branches.read = 44, []
        with pytest.raises(TimeoutError if hangs else LedgerUnavailable):
            await branches.look(reader, hangs=hangs)
        starts.append(branches.read[0])
    assert starts == sorted(set(starts))
    branches.left, branches.read = None, []
    assert await manifests(reader) == [digest(step) for step in range(steps)]
    assert branches.read[0] > starts[-1]
    assert len(branches.read) <= 2 * (2 + steps - branches.read[0] + OVERLAP)  # each block once more at most


async def test_refresh__a_newest_block_that_is_made_up_does_not_keep_the_honest_from_being_asked__chain_26() -> None:
    registry = make_registry(commit(0), commit(1))
    newest: dict[str, Any] = registry.chain.head

    def made_up(tag: str, _: bool) -> Any:
        number = 2**60 if tag == "latest" else int(tag, 16)
        return {**newest, "number": hex(number), "hash": f"0x{number:064x}"}

    line = Lying(registry, {"eth_getBlockByNumber": made_up, "eth_getLogs": []})
    rpc = line.rpc("liar", "honest")
    reader = RunReader(rpc, domain=registry.domain, run=RUN, first_block=2, pass_over=rpc.pass_over)
    assert await manifests(reader) == [digest(0), digest(1)]
    assert (await reader.head()).number == int(registry.chain.head["number"], 16)
    assert ("liar", "eth_getLogs") not in line.asked
    await rpc.close()


@pytest.mark.parametrize(
    ("method", "lie"),
    [
        ("eth_getLogs", Exception({"code": -32000, "message": "history has been pruned"})),
        ("eth_getBlockByNumber", Exception({"code": -32000, "message": "header not found"})),
    ],
)
async def test_refresh__one_that_refuses_for_good_is_left_for_the_next__chain_26(method: str, lie: Exception) -> None:
    registry = make_registry(commit(0), commit(1))
    rpc = Lying(registry, {method: lie}).rpc("liar", "honest")
    reader = RunReader(rpc, domain=registry.domain, run=RUN, first_block=2, pass_over=rpc.pass_over)
    with pytest.raises(LedgerUnavailable, match="refused"):
        await reader.refresh(now=True)
    assert await manifests(reader) == [digest(0), digest(1)]
    await rpc.close()


async def test_refresh__a_chain_that_stays_below_what_was_shown_is_believed_in_the_end() -> None:
    branches = Branches(make_registry(commit(0), commit(1)))
    reader = RunReader(branches, domain=branches.rpc.registry.domain, run=RUN, first_block=2, lag_seconds=0.05)
    shorter = ScriptedRpc(make_registry(commit(0)))
    branches.rpc, longer = shorter, branches.rpc
    await reader.refresh(now=True)
    branches.rpc = longer
    assert await manifests(reader) == [digest(0), digest(1)]
    branches.rpc = shorter
    assert await manifests(reader) == [digest(0), digest(1)]
    await asyncio.sleep(0.06)
    assert await manifests(reader) == [digest(0)]


class Spammed(httpx.AsyncBaseTransport):
    """End-points of a chain full of nonsense registrations. Searching more than
    `most_blocks` blocks takes them too long."""

    def __init__(self, *, head: int, junk: range, most_blocks: int = 10**6) -> None:
        self.head, self.junk, self.most_blocks = head, junk, most_blocks
        self.asked: list[int] = []  # blocks of each request for logs
        self.is_hanging = False

    def rpc(self, *hosts: str) -> Rpc:
        """An Rpc that limits a response to 64 KiB."""
        return Rpc([f"http://{host}" for host in hosts], patience=0.0, most_bytes=2**16, transport=self)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        body = json.loads(await request.aread())
        if request.url.host == "hangs" and body["method"] == "eth_getLogs":
            raise httpx.ReadTimeout("")
        return httpx.Response(
            200, json={"jsonrpc": "2.0", "id": 1, "result": self.answer(body["method"], body["params"])}
        )

    def answer(self, method: str, parameters: list[Any]) -> Any:
        match method:
            case "eth_chainId":
                return "0x7a69"
            case "eth_getBlockByNumber":
                return self._block(self.head if parameters[0] == "latest" else int(parameters[0], 16))
        first, last = int(parameters[0]["fromBlock"], 16), int(parameters[0]["toBlock"], 16)
        self.asked.append(last - first + 1)
        if last - first + 1 > self.most_blocks:
            raise httpx.ReadTimeout("")
        return [self._junk(number) for number in range(first, last + 1) if number in self.junk]

    def _block(self, number: int) -> dict[str, str]:
        digests = {"hash": f"0x{number + 1:064x}", "parentHash": f"0x{number:064x}"}
        return {"number": hex(number), "timestamp": hex(START + number), "baseFeePerGas": "0x1", **digests}

    def _junk(self, number: int) -> dict[str, Any]:
        (topic,) = [each for each, name in TOPICS.items() if name == "Registered"]
        words = ("00" * 32, f"{number:064x}", f"{0x60:064x}", f"{64:064x}", "ff" * 64)
        return {
            "topics": [topic, "0x" + RUN, "0x" + "11" * 32, "0x" + "00" * 32],
            "data": "0x" + "".join(words),
            "blockNumber": hex(number),
            "logIndex": "0x0",
        }


def read_by(rpc: Rpc) -> RunReader:
    return RunReader(rpc, domain=Domain(31337, ADDRESSES[11]), run=RUN, first_block=1, pass_over=rpc.pass_over)


async def test_refresh__more_junk_than_an_answer_holds__is_read_in_smaller_pieces() -> None:
    chain = Spammed(head=1500, junk=range(1, 1001))  # 700 bytes each
    reader = read_by(chain.rpc("one"))
    await reader.refresh(now=True)
    assert (await reader.head()).number == 1500
    assert not (await reader.events()).commits
    assert min(chain.asked) < 100
    assert len(chain.asked) < 60


async def test_refresh__pieces_grow_again_once_the_junk_is_past() -> None:
    chain = Spammed(head=1500, junk=range(1, 1001))
    reader = read_by(chain.rpc("one"))
    for _ in range(6):
        await reader.refresh(now=True)
    chain.head, chain.asked = 3000, []
    await reader.refresh(now=True)
    assert chain.asked == [1500 + OVERLAP]


async def test_refresh__logs_that_take_too_long_to_find__are_asked_for_in_smaller_pieces() -> None:
    chain = Spammed(head=1500, junk=range(0), most_blocks=300)
    reader = read_by(chain.rpc("one"))
    await reader.refresh(now=True)
    assert (await reader.head()).number == 1500


async def test_refresh__logs_that_take_too_long_to_find__smaller_pieces_outlast_the_callers_patience() -> None:
    class Slow(Spammed):
        async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
            try:
                return await super().handle_async_request(request)
            except httpx.ReadTimeout:
                await asyncio.sleep(0.1)
                raise

    chain = Slow(head=1500, junk=range(0), most_blocks=40)
    reader, tries = read_by(chain.rpc("one")), 0
    while tries < 6:
        tries += 1
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.35):  # as an observer gives up
                await reader.refresh(now=True)
                break
    assert tries < 6
    assert (await reader.head()).number == 1500


async def test_refresh__one_end_point_hangs__the_next_gives_the_whole_piece() -> None:
    chain = Spammed(head=1500, junk=range(0))
    await read_by(chain.rpc("hangs", "one")).refresh(now=True)
    assert chain.asked == [1500]


async def test_refresh__an_end_point_that_gives_nothing_ends_in_bounded_work() -> None:
    chain = Spammed(head=1500, junk=range(0), most_blocks=0)
    with pytest.raises(LedgerUnavailable, match="gives so much"):
        await read_by(chain.rpc("one")).refresh(now=True)
    assert len(chain.asked) < 16
