"""What only a real node's transaction pool does: transactions wait, are dropped, are replaced, or lose their block."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from ledger.evm import CHAIN_ID
from ledger.policy import ChainPolicy
from ledger.rpc import Rpc
from ledger.sender import Sender
from ledger.wallet import address_of
from tests.anvil import ask
from tests.unit.ledger.conftest import ACCOUNTS

KEY, TARGET = ACCOUNTS[4], address_of(ACCOUNTS[5])


@pytest.fixture
async def rpc(anvil: str) -> AsyncIterator[Rpc]:
    made = Rpc([anvil])
    yield made
    await made.close()


@pytest.fixture
def waiting(anvil: str) -> Iterator[str]:
    """The chain with blocks made on demand only."""
    ask(anvil, "evm_setAutomine", False)
    yield anvil
    ask(anvil, "evm_setAutomine", True)


def make_sender(rpc: Rpc, folder: Path, *, bump_seconds: float = 60.0, confirmations: int = 1) -> Sender:
    policy = ChainPolicy(confirmations=confirmations)
    journal = folder / "transaction.json"
    return Sender(
        rpc, KEY, chain_id=CHAIN_ID, journal=journal, policy=policy, bump_seconds=bump_seconds, replaced_seconds=0.1
    )


async def pending(url: str) -> list[str]:
    """Hashes of the transactions that wait, once there is one."""
    while True:
        block = await asyncio.to_thread(ask, url, "eth_getBlockByNumber", "pending", False)
        if block["transactions"]:
            return list(block["transactions"])


async def test_send__dropped_from_the_pool_goes_out_again__chain_06(waiting: str, rpc: Rpc, tmp_path: Path) -> None:
    before = ask(waiting, "eth_getBalance", TARGET, "latest")  # CHAIN-06
    sending = asyncio.ensure_future(make_sender(rpc, tmp_path, bump_seconds=0.05).send(TARGET, "0x", 7))
    first = await pending(waiting)
    await asyncio.to_thread(ask, waiting, "anvil_dropTransaction", first[0])
    while await pending(waiting) == first:
        pass
    await asyncio.to_thread(ask, waiting, "anvil_mine", "0x1")
    receipt = await sending
    assert receipt["status"] == "0x1"
    assert int(ask(waiting, "eth_getBalance", TARGET, "latest"), 16) - int(before, 16) == 7


async def test_send__a_better_offer_replaces_one_that_waits__chain_08(waiting: str, rpc: Rpc, tmp_path: Path) -> None:
    before = ask(waiting, "eth_getBalance", TARGET, "latest")  # CHAIN-08
    sending = asyncio.ensure_future(make_sender(rpc, tmp_path, bump_seconds=0.05).send(TARGET, "0x", 7))
    first = await pending(waiting)
    while (second := await pending(waiting)) == first:
        pass
    assert len(second) == 1
    await asyncio.to_thread(ask, waiting, "anvil_mine", "0x1")
    await sending
    assert int(ask(waiting, "eth_getBalance", TARGET, "latest"), 16) - int(before, 16) == 7


async def test_send__its_block_is_reorganised_away__chain_fork(anvil: str, rpc: Rpc, tmp_path: Path) -> None:
    before = ask(anvil, "eth_getBalance", TARGET, "latest")
    height = int(ask(anvil, "eth_blockNumber"), 16)
    sending = asyncio.ensure_future(make_sender(rpc, tmp_path, bump_seconds=0.5, confirmations=3).send(TARGET, "0x", 7))
    while int(await asyncio.to_thread(ask, anvil, "eth_blockNumber"), 16) == height:
        pass
    await asyncio.to_thread(ask, anvil, "anvil_reorg", 1, [])
    while not sending.done():
        await asyncio.to_thread(ask, anvil, "anvil_mine", "0x1")
    assert (await sending)["status"] == "0x1"
    assert int(ask(anvil, "eth_getBalance", TARGET, "latest"), 16) - int(before, 16) == 7
