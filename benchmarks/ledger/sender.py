"""The sender on a bad line: payments over an RPC proxy that drops, delays, repeats and re-orders, with the sender's
process killed now and then. Counts on the chain what arrived, and how many transactions it took. The faults follow
from a seed, their times do not."""

from __future__ import annotations

import asyncio
import random
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx
import structlog

from ledger.accounts import devnet_accounts
from ledger.chain_journal import Genesis
from ledger.devnet_rpc import DevnetRpc
from ledger.errors import LedgerUnavailable
from ledger.evm import BALANCE, CHAIN_ID, DevChain
from ledger.json_rpc import MAX_ANSWER, JsonRpc
from ledger.rpc import Rpc
from ledger.sender import Sender
from ledger.wallet import address_of
from tests.bad_rpc import BadLine, Faults

KEY, OTHER = devnet_accounts(2, "benchmark")
TARGET = address_of(OTHER)
LINES = {
    "good": Faults(0, 0, 0, 0, 0, 0),
    "poor": Faults(),
    "bad": Faults(0.12, 0.12, 0.12, 0.12, 0.2, 0.12),
}
"""Probability of each fault per request. `poor` has 5% of each, except for delays (10%)."""
KILLED = 0.005
"""Probability that the process ends before or after a request."""


class Killed(BaseException):
    """The process has ended."""


class MortalRequests(JsonRpc):
    """Requests whose process ends now and then."""

    def __init__(self, line: BadLine, dice: random.Random, chance: float) -> None:
        super().__init__(is_secure=False, most_bytes=MAX_ANSWER, transport=line)
        self._dice, self._chance = dice, chance

    async def ask(self, url: str, method: str, parameters: Sequence[object]) -> Any:
        for moment in ("before", "after"):
            if self._dice.random() < self._chance:
                raise Killed
            if moment == "before":
                answer = await super().ask(url, method, parameters)
        return answer


class MortalRpc(Rpc):
    """An Rpc in such a process."""

    def __init__(self, line: BadLine, dice: random.Random, chance: float) -> None:
        super().__init__(["http://chain"], patience=0.5, transport=line)
        self._http = MortalRequests(line, dice, chance)


def measure(quick: bool) -> dict[str, Any]:
    """Send payments over each line. Returns what arrived, and the cost."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    count = 10 if quick else 100
    sys.stdout.write(f"\n{count} payments over an RPC line, the process killed in {KILLED:.1%} of the moments\n")
    sys.stdout.write(
        f"{'line':6} {'arrived':>8} {'lost':>5} {'twice':>6} {'requests':>9} {'faults':>7} {'kills':>6} {'s each':>7}\n"
    )
    found = {name: asyncio.run(_send(faults, count, kills=name != "good")) for name, faults in LINES.items()}
    for name, row in found.items():
        sys.stdout.write(
            f"{name:6} {row['arrived']:>8} {row['lost']:>5} {row['twice']:>6} {row['requests']:>9} {row['faults']:>7} "
            f"{row['kills']:>6} {row['seconds_each']:>7.2f}\n"
        )
    return found


async def _send(faults: Faults, count: int, *, kills: bool) -> dict[str, Any]:
    chain = DevChain(Genesis(int(time.time()), (address_of(KEY), TARGET)), clock=time.time)
    line, dice, killed = BadLine(httpx.ASGITransport(app=DevnetRpc(chain)), faults), random.Random(1), 0
    begun = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        journal = Path(folder) / "transaction.json"
        for index in range(count):
            while True:  # retry until done, as a caller does
                try:
                    await _sender(line, dice, journal, KILLED if kills else 0.0).send(TARGET, _data(index), 1)
                    break
                except LedgerUnavailable:
                    continue
                except Killed:
                    killed += 1
    seconds = time.perf_counter() - begun
    arrived, sent = chain.balance(TARGET) - BALANCE, chain.nonce(address_of(KEY))
    return {
        "arrived": arrived,
        "lost": max(0, count - arrived),
        "twice": max(0, sent - count),
        "requests": line.requests,
        "faults": sum(line.happened.values()),
        "kills": killed,
        "seconds_each": round(seconds / count, 3),
    }


def _sender(line: BadLine, dice: random.Random, journal: Path, chance: float) -> Sender:
    rpc = MortalRpc(line, dice, chance)
    return Sender(
        rpc, KEY, chain_id=CHAIN_ID, journal=journal, bump_seconds=1.0, replaced_seconds=0.2, inclusion_seconds=5.0
    )


def _data(index: int) -> str:
    return "0x" + index.to_bytes(4, "big").hex()
