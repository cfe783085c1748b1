"""The sender over a scripted RPC in front of a real chain: lost answers, kills, replaced nonces, reverts."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ledger import abi
from ledger.devnet import DevnetRpc
from ledger.errors import LedgerError, LedgerRejected, LedgerUnavailable, LowBalance
from ledger.evm import CHAIN_ID
from ledger.records import ZERO_DIGEST
from ledger.rpc import Request, RpcError
from ledger.sender import Sender
from ledger.wallet import address_of, new_key
from tests.contract.harness import KEYS, RUN, TRAINER, Registry, digest


class ScriptedRpc:
    """Answers from the chain, after `script` had its way with the request (by default, nothing)."""

    def __init__(self, registry: Registry) -> None:
        self.registry = registry
        self.calls: list[str] = []
        self.script: Callable[[str], None] = lambda method: None
        self._server = DevnetRpc(registry.chain)

    async def call(self, method: str, *parameters: object) -> Any:
        self.calls.append(method)
        self.script(method)
        body = json.dumps({"id": 1, "method": method, "params": parameters}).encode()
        answer = json.loads(self._server.answer(body))
        if "error" in answer:
            error = answer["error"]
            raise RpcError(error["code"], error["message"], abi.unhex(error.get("data", "")))
        return answer["result"]

    async def together(self, *requests: Request) -> list[Any]:
        return [await self.call(method, *parameters) for method, *parameters in requests]

    @property
    def broadcasts(self) -> int:
        return self.calls.count("eth_sendRawTransaction")


@pytest.fixture
def rpc() -> ScriptedRpc:
    registry = Registry()
    registry.create_run()
    return ScriptedRpc(registry)


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    return tmp_path / "transaction.json"


def make_sender(rpc: ScriptedRpc, journal: Path | None, **changes: Any) -> Sender:
    settings = {"inclusion_seconds": 5.0, "bump_seconds": 5.0, "replaced_seconds": 0.0, **changes}
    return Sender(rpc, changes.pop("key", TRAINER), chain_id=CHAIN_ID, journal=journal, **settings)


def commit_data(step: int) -> str:
    parent = digest(step - 1) if step else ZERO_DIGEST
    digests = bytes.fromhex(digest(step)), bytes.fromhex(parent)
    return abi.encode_call("commit_checkpoint", bytes.fromhex(RUN), 1, step, *digests, False)


def steps(rpc: ScriptedRpc) -> list[int]:
    return [commit.step for commit in rpc.registry.events().commits]


def left_over(journal: Path) -> list[str]:
    """Signed forms of the transaction the journal holds."""
    return list(json.loads(journal.read_text())["attempts"]) if journal.exists() else []


class Killed(BaseException):
    """Stands for the process's end: nothing in the sender may catch it."""


def kill_on(method: str, *, after: int = 0) -> Callable[[str], None]:
    left = [after]

    def script(called: str) -> None:
        if called == method:
            left[0] -= 1
            if left[0] < 0:
                raise Killed

    return script


async def test_send__waits_for_the_receipt__chain_14(rpc: ScriptedRpc, journal: Path) -> None:  # CHAIN-14
    receipt = await make_sender(rpc, journal).send(rpc.registry.address, commit_data(0))
    assert receipt["status"] == "0x1"
    assert steps(rpc) == [0]
    assert left_over(journal) == []


async def test_send__one_at_a_time__chain_08(rpc: ScriptedRpc, journal: Path) -> None:  # CHAIN-08
    sender = make_sender(rpc, journal)
    await asyncio.gather(*(sender.send(rpc.registry.address, commit_data(step)) for step in range(4)))
    assert steps(rpc) == [0, 1, 2, 3]


@pytest.mark.parametrize("moment", ["eth_sendRawTransaction", "eth_getTransactionReceipt"])
async def test_settle__after_a_kill_sends_the_same_transaction_once(
    rpc: ScriptedRpc, journal: Path, moment: str
) -> None:
    rpc.script = kill_on(moment)
    with pytest.raises(Killed):
        await make_sender(rpc, journal).send(rpc.registry.address, commit_data(0))
    assert len(left_over(journal)) == 1
    rpc.script = lambda method: None
    restarted = make_sender(rpc, journal)
    await restarted.settle()
    assert steps(rpc) == [0]
    assert rpc.registry.chain.nonce(restarted.address) == 1
    assert left_over(journal) == []
    await restarted.send(rpc.registry.address, commit_data(1))
    assert steps(rpc) == [0, 1]


async def test_send__bumps_the_fee_of_a_stuck_transaction(rpc: ScriptedRpc, journal: Path) -> None:
    def lose_first(method: str) -> None:
        if method == "eth_sendRawTransaction" and rpc.broadcasts == 1:
            raise RpcError(-32000, "transaction underpriced", b"")

    rpc.script = lose_first
    await make_sender(rpc, journal, bump_seconds=0.0).send(rpc.registry.address, commit_data(0))
    assert rpc.broadcasts == 2
    assert steps(rpc) == [0]


async def test_send__not_included_stays_in_the_journal(rpc: ScriptedRpc, journal: Path) -> None:
    def lose(method: str) -> None:
        if method == "eth_sendRawTransaction":
            raise RpcError(-32000, "txpool is full", b"")

    rpc.script = lose
    sender = make_sender(rpc, journal, inclusion_seconds=0.0)
    with pytest.raises(LedgerUnavailable, match="not in a block yet"):
        await sender.send(rpc.registry.address, commit_data(0))
    assert len(left_over(journal)) == 1
    rpc.script = lambda method: None
    await sender.settle()
    assert steps(rpc) == [0]


async def test_send__signs_again_when_its_nonce_was_taken__chain_06(rpc: ScriptedRpc, journal: Path) -> None:
    # CHAIN-06
    def take_nonce(method: str) -> None:
        if method == "eth_sendRawTransaction" and rpc.broadcasts == 1:
            rpc.registry.transact(TRAINER, rpc.registry.address, commit_data(0))

    rpc.script = take_nonce
    await make_sender(rpc, journal).send(rpc.registry.address, abi.encode_call("run_count"))
    assert steps(rpc) == [0]
    assert rpc.registry.chain.nonce(address_of(TRAINER)) == 2


async def test_send__a_revert_is_never_sent__chain_03(rpc: ScriptedRpc, journal: Path) -> None:  # CHAIN-03
    with pytest.raises(LedgerRejected) as refusal:
        await make_sender(rpc, journal).send(rpc.registry.address, commit_data(3))
    assert refusal.value.reason == "step"
    assert rpc.broadcasts == 0


async def test_send__a_revert_in_the_block_gives_its_reason(rpc: ScriptedRpc, journal: Path) -> None:
    run = digest("contested")
    create = abi.encode_call("create_run", bytes.fromhex(run), *_operators(), 1, 1, 1, 1)

    def front_run(method: str) -> None:
        if method == "eth_sendRawTransaction":
            rpc.registry.transact(KEYS[5], rpc.registry.address, create)

    rpc.script = front_run
    with pytest.raises(LedgerRejected) as refusal:
        await make_sender(rpc, journal).send(rpc.registry.address, create)
    assert refusal.value.reason == "run exists"
    assert left_over(journal) == []


async def test_send__says_what_is_missing_for_gas__chain_12(rpc: ScriptedRpc) -> None:  # CHAIN-12
    sender = Sender(rpc, new_key(), chain_id=CHAIN_ID, journal=None)
    with pytest.raises(LowBalance) as shortage:
        await sender.send(rpc.registry.address, abi.encode_call("run_count"))
    assert shortage.value.balance == 0 < shortage.value.needed


def test_sender__refuses_a_broken_journal(rpc: ScriptedRpc, journal: Path) -> None:
    journal.write_text("{}")
    with pytest.raises(LedgerError, match="not a transaction journal"):
        make_sender(rpc, journal)


def _operators() -> tuple[list[tuple[bytes, str, str]], list[tuple[bytes, str, str]]]:
    one = [(b"\x01" * 32, address_of(KEYS[1]), address_of(KEYS[1]))]
    return one, one
