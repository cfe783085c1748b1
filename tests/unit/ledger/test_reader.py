"""The reader: few requests, and no trace of blocks a re-organisation took away."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from ledger.errors import LedgerError, LedgerUnavailable
from ledger.events import TOPICS
from ledger.evm import DevChain, Genesis
from ledger.reader import RunReader
from ledger.rpc import RpcError
from tests.contract.harness import ADDRESSES, RUN, START, Registry, digest, make_registration
from tests.unit.ledger.test_sender import ScriptedRpc


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


async def test_refresh__a_gap_is_unavailable_then_healed() -> None:
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
