"""The sender over a line that drops, delays, repeats and re-orders: nothing lost, nothing sent twice."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest

from ledger.devnet import DevnetRpc
from ledger.errors import LedgerUnavailable
from ledger.evm import BALANCE, CHAIN_ID, DevChain, Genesis
from ledger.rpc import Rpc
from ledger.sender import Sender
from ledger.wallet import address_of
from tests.bad_rpc import BadLine, Faults
from tests.contract.harness import ADDRESSES, KEYS, START

TARGET = ADDRESSES[9]
COUNT = 25


class Killed(BaseException):
    """Stands for the process's end: nothing in the sender may catch it."""


class Mortal(Rpc):
    """An Rpc whose process is killed now and then, before or after a request."""

    def __init__(self, line: BadLine, dice: random.Random, chance: float) -> None:
        super().__init__(["http://chain"], patience=0.0, transport=line)
        self._dice, self._chance = dice, chance

    async def _request(self, url: str, method: str, parameters: Sequence[object]) -> Any:
        self._maybe_die()
        answer = await super()._request(url, method, parameters)
        self._maybe_die()
        return answer

    def _maybe_die(self) -> None:
        if self._dice.random() < self._chance:
            raise Killed


@pytest.mark.parametrize("seed", range(2))
async def test_send__over_a_bad_line_each_payment_arrives_once__chain_08_chain_10(tmp_path: Path, seed: int) -> None:
    chain = DevChain(Genesis(START, ADDRESSES), clock=lambda: 0)
    line = BadLine(httpx.ASGITransport(app=DevnetRpc(chain)), Faults(), seed=seed)
    dice = random.Random(seed)
    kills = 0
    rpc, sender = _start(line, dice, tmp_path)
    for index in range(COUNT):
        while True:
            try:
                await sender.send(TARGET, "0x" + index.to_bytes(4, "big").hex(), index + 1)
                break
            except LedgerUnavailable:
                continue
            except Killed:
                kills += 1
                rpc, sender = _start(line, dice, tmp_path)
    await rpc.close()
    assert chain.balance(TARGET) - BALANCE == sum(range(1, COUNT + 1))
    assert chain.nonce(address_of(KEYS[0])) == COUNT
    assert kills > 0
    assert set(line.happened) == {"lost_request", "lost_answer", "repeated", "late", "delay", "busy"}


def _start(line: BadLine, dice: random.Random, folder: Path) -> tuple[Rpc, Sender]:
    rpc = Mortal(line, dice, chance=0.01)
    journal = folder / "transaction.json"
    return rpc, Sender(
        rpc,
        KEYS[0],
        chain_id=CHAIN_ID,
        journal=journal,
        bump_seconds=0.2,
        replaced_seconds=0.1,
        inclusion_seconds=2.0,
    )
