"""The sender over a line that drops, delays, repeats and re-orders: nothing is lost, and nothing sent twice."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest

from ledger.chain_journal import Genesis
from ledger.devnet_rpc import DevnetRpc
from ledger.errors import LedgerUnavailable
from ledger.evm import CHAIN_ID, DevChain
from ledger.json_rpc import MAX_ANSWER, JsonRpc
from ledger.rpc import Rpc
from ledger.sender import Sender
from ledger.wallet import address_of
from tests.bad_rpc import BadLine, Faults
from tests.contract.harness import START
from tests.unit.ledger.conftest import ACCOUNTS

TARGET = address_of(ACCOUNTS[6])
COUNT = 25
SEED = 1


class Killed(BaseException):
    """Simulates the process's end: nothing in the sender may catch it."""


class MortalRequests(JsonRpc):
    """Requests of a process that is killed now and then, before or after one."""

    def __init__(self, line: BadLine, dice: random.Random, chance: float) -> None:
        super().__init__(is_secure=False, most_bytes=MAX_ANSWER, transport=line)
        self._dice, self._chance = dice, chance

    async def ask(self, url: str, method: str, parameters: Sequence[object]) -> Any:
        self._maybe_die()
        answer = await super().ask(url, method, parameters)
        self._maybe_die()
        return answer

    def _maybe_die(self) -> None:
        if self._dice.random() < self._chance:
            raise Killed


class Mortal(Rpc):
    """An Rpc of such a process."""

    def __init__(self, url: str, line: BadLine, dice: random.Random, chance: float) -> None:
        super().__init__([url], patience=0.0, transport=line)
        self._http = MortalRequests(line, dice, chance)


@pytest.fixture(params=["devnet", "anvil"])
def place(request: pytest.FixtureRequest) -> tuple[str, httpx.AsyncBaseTransport]:
    """A chain's URL, and the faults on the way to it."""
    if request.param == "anvil":
        return request.getfixturevalue("anvil"), httpx.AsyncHTTPTransport()
    funded = [address_of(ACCOUNTS[0])]
    return "http://chain", httpx.ASGITransport(app=DevnetRpc(DevChain(Genesis(START, tuple(funded)), clock=time.time)))


async def test_send__over_a_bad_line_each_payment_arrives_once__chain_08_chain_10(
    tmp_path: Path, place: tuple[str, httpx.AsyncBaseTransport]
) -> None:
    url, way = place
    good = Rpc([url], transport=way)
    before = await _balance(good), await _nonce(good)
    line = BadLine(way, Faults(), seed=SEED)
    dice = random.Random(SEED)
    kills = 0
    sender = _start(url, line, dice, tmp_path)
    for index in range(COUNT):
        while True:
            try:
                await sender.send(TARGET, "0x" + index.to_bytes(4, "big").hex(), index + 1)
                break
            except LedgerUnavailable:
                continue
            except Killed:
                kills += 1
                sender = _start(url, line, dice, tmp_path)
    assert await _balance(good) - before[0] == sum(range(1, COUNT + 1))
    assert await _nonce(good) - before[1] == COUNT
    assert kills > 0
    assert set(line.happened) == {"lost_request", "lost_answer", "repeated", "late", "delay", "busy"}
    await good.close()


def _start(url: str, line: BadLine, dice: random.Random, folder: Path) -> Sender:
    return Sender(
        Mortal(url, line, dice, chance=0.01),
        ACCOUNTS[0],
        chain_id=CHAIN_ID,
        journal=folder / "transaction.json",
        bump_seconds=0.2,
        replaced_seconds=0.1,
        inclusion_seconds=2.0,
    )


async def _balance(rpc: Rpc) -> int:
    return int(await rpc.call("eth_getBalance", TARGET, "latest"), 16)


async def _nonce(rpc: Rpc) -> int:
    return int(await rpc.call("eth_getTransactionCount", address_of(ACCOUNTS[0]), "latest"), 16)
