"""The sender over a scripted RPC in front of a real chain: lost responses, kills, replaced nonces, reverts."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from ledger import abi
from ledger.devnet_rpc import DevnetRpc
from ledger.errors import LedgerError, LedgerRejected, LedgerUnavailable, LowBalance
from ledger.events import term_tuple
from ledger.evm import BALANCE, CHAIN_ID
from ledger.json_rpc import RpcError
from ledger.policy import ChainPolicy
from ledger.records import ZERO_DIGEST
from ledger.rpc import PinnedCaller, Request, Rpc
from ledger.sender import Sender
from ledger.wallet import address_of, new_key
from tests.contract.harness import ADDRESSES, KEYS, RUN, TRAINER, Registry, digest, make_terms


class ScriptedRpc:
    """Answers from the chain, after `script` has processed the request (by default, not at all)."""

    def __init__(self, registry: Registry) -> None:
        self.registry = registry
        self.calls: list[str] = []
        self.script: Callable[[str], None] = lambda method: None
        self.answers: dict[str, list[Any]] = {}  # lies, by method, each told once
        self.late_receipts = 0
        self._server = DevnetRpc(registry.chain)

    def switch(self, registry: Registry) -> None:
        """Serve another chain from now on."""
        self.registry, self._server = registry, DevnetRpc(registry.chain)

    async def call(self, method: str, *parameters: object) -> Any:
        self.calls.append(method)
        self.script(method)
        if self.answers.get(method):
            return self.answers[method].pop(0)
        if method == "eth_getTransactionReceipt" and self.late_receipts > 0:
            self.late_receipts -= 1
            return None
        body = json.dumps({"id": 1, "method": method, "params": parameters}).encode()
        answer = json.loads(self._server.answer(body))
        if "error" in answer:
            error = answer["error"]
            raise RpcError(error["code"], error["message"], abi.unhex(error.get("data", "")))
        return answer["result"]

    async def together(self, *requests: Request) -> list[Any]:
        return [await self.call(method, *parameters) for method, *parameters in requests]

    async def everywhere(self, *requests: Request) -> list[list[Any]]:
        return [await self.together(*requests)]

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


def make_sender(rpc: PinnedCaller, journal: Path | None, **changes: Any) -> Sender:
    settings = {"inclusion_seconds": 5.0, "bump_seconds": 5.0, "replaced_seconds": 0.0, **changes}
    return Sender(rpc, changes.pop("key", TRAINER), chain_id=CHAIN_ID, journal=journal, **settings)


def commit_data(step: int) -> str:
    parent = digest(step - 1) if step else ZERO_DIGEST
    digests = bytes.fromhex(digest(step)), bytes.fromhex(parent)
    return abi.encode_call("commit_checkpoint", bytes.fromhex(RUN), 1, step, *digests, False)


def steps(rpc: ScriptedRpc) -> list[int]:
    return [commit.step for commit in rpc.registry.events().commits]


def left_over(journal: Path) -> list[str]:
    """Signed forms of the transaction in the journal."""
    return list(json.loads(journal.read_text())["attempts"]) if journal.exists() else []


def spoil(journal: Path, **changes: object) -> None:
    journal.write_text(json.dumps({**json.loads(journal.read_text()), **changes}))


def offered(journal: Path) -> int:
    """Wei per gas offered by the transaction in the journal."""
    return int(json.loads(journal.read_text())["max_fee"])


class Lying(httpx.AsyncBaseTransport):
    """A chain behind several end-points; the one called `liar` lies in its responses to some methods."""

    def __init__(self, registry: Registry, lies: dict[str, Any]) -> None:
        self.lies = lies
        self.asked: list[tuple[str, str]] = []  # host and method
        self._inner = httpx.ASGITransport(app=DevnetRpc(registry.chain))

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        body = json.loads(await request.aread())
        self.asked.append((request.url.host, body["method"]))
        if request.url.host == "liar" and body["method"] in self.lies:
            lie = self.lies[body["method"]]
            lie = lie(*body["params"]) if callable(lie) else lie
            said = {"error": lie.args[0]} if isinstance(lie, Exception) else {"result": lie}
            return httpx.Response(200, json={"jsonrpc": "2.0", "id": 1, **said})
        return await self._inner.handle_async_request(request)

    def rpc(self, *hosts: str) -> Rpc:
        """An Rpc of these end-points, in this order."""
        return Rpc([f"http://{host}" for host in hosts], patience=0.0, transport=self)


class Killed(BaseException):
    """Simulates the process's end: nothing in the sender may catch it."""


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
    create = abi.encode_call("create_run", bytes.fromhex(run), term_tuple(make_terms(quorum=1)), *_operators())

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


async def test_send__a_call_under_way_is_not_sent_again__chain_10(rpc: ScriptedRpc, journal: Path) -> None:  # CHAIN-10
    rpc.script = kill_on("eth_getTransactionReceipt")
    with pytest.raises(Killed):
        await make_sender(rpc, journal).send(ADDRESSES[11], "0x", 5)
    rpc.script = lambda method: None
    await make_sender(rpc, journal).send(ADDRESSES[11], "0x", 5)
    assert rpc.registry.chain.balance(ADDRESSES[11]) == BALANCE + 5


async def test_send__one_that_settle_saw_through_is_not_sent_again(rpc: ScriptedRpc, journal: Path) -> None:
    rpc.script = kill_on("eth_getTransactionReceipt")
    with pytest.raises(Killed):
        await make_sender(rpc, journal).send(ADDRESSES[11], "0x", 5)
    rpc.script = lambda method: None
    restarted = make_sender(rpc, journal)
    await restarted.settle()
    await restarted.send(ADDRESSES[11], "0x", 5)
    assert rpc.registry.chain.balance(ADDRESSES[11]) == BALANCE + 5
    await restarted.send(ADDRESSES[11], "0x", 5)
    assert rpc.registry.chain.balance(ADDRESSES[11]) == BALANCE + 10


async def test_send__a_receipt_that_comes_late_is_waited_for(rpc: ScriptedRpc, journal: Path) -> None:
    """The nonce is used and the index has no receipt yet: treating that as a replacement would pay twice."""
    rpc.late_receipts = 2
    await make_sender(rpc, journal).send(ADDRESSES[11], "0x", 5)
    assert rpc.registry.chain.balance(ADDRESSES[11]) == BALANCE + 5
    assert rpc.registry.chain.nonce(address_of(TRAINER)) == 1


async def test_send__a_block_taken_back_is_sent_again__chain_fork(rpc: ScriptedRpc, journal: Path) -> None:
    rival = Registry()
    rival.create_run()

    def reorganise(method: str) -> None:
        if rpc.calls.count("eth_getTransactionReceipt") == 2:
            rpc.registry.skip(1)
            rpc.switch(rival)
            rpc.script = lambda method: rival.skip(1) if method == "eth_blockNumber" else None

    rpc.script = reorganise
    receipt = await make_sender(rpc, journal, policy=ChainPolicy(confirmations=3)).send(
        rpc.registry.address, commit_data(0)
    )
    assert steps(rpc) == [0]
    assert rpc.registry is rival
    assert int(rival.chain.head["number"], 16) - int(receipt["blockNumber"], 16) >= 2


async def test_send__waits_until_the_block_lies_deep(rpc: ScriptedRpc, journal: Path) -> None:
    rpc.script = lambda method: rpc.registry.skip(1) if method == "eth_blockNumber" else None
    receipt = await make_sender(rpc, journal, policy=ChainPolicy(confirmations=4)).send(
        rpc.registry.address, commit_data(0)
    )
    assert int(rpc.registry.chain.head["number"], 16) >= int(receipt["blockNumber"], 16) + 3


async def test_send__more_gas_than_estimated__chain_09(rpc: ScriptedRpc, journal: Path) -> None:
    rpc.answers = {"eth_estimateGas": [hex(60_000)]}
    await make_sender(rpc, journal).send(rpc.registry.address, commit_data(0))
    assert steps(rpc) == [0]
    assert rpc.registry.chain.nonce(address_of(TRAINER)) == 2


@pytest.mark.parametrize(
    "method", ["eth_getBlockByNumber", "eth_getBalance", "eth_getTransactionCount", "eth_blockNumber", "eth_gasPrice"]
)
async def test_send__an_end_point_that_refuses_to_answer_decides_nothing(
    rpc: ScriptedRpc, journal: Path, method: str
) -> None:
    def refuse(called: str) -> None:
        if called in (method, "eth_maxPriorityFeePerGas"):
            raise RpcError(-32000, "header not found", b"")

    rpc.script = refuse
    sender = make_sender(rpc, journal, policy=ChainPolicy(confirmations=2), inclusion_seconds=0.1)
    with pytest.raises(LedgerUnavailable):
        await sender.send(ADDRESSES[11], "0x", 5)
    rpc.script = lambda called: rpc.registry.skip(1) if called == "eth_blockNumber" else None
    await sender.send(ADDRESSES[11], "0x", 5)
    assert rpc.registry.chain.balance(ADDRESSES[11]) == BALANCE + 5


async def test_send__offers_no_more_than_the_cap(rpc: ScriptedRpc, journal: Path) -> None:
    base_fee = int(rpc.registry.chain.head["baseFeePerGas"], 16)

    def never_take(method: str) -> None:
        if method == "eth_sendRawTransaction":
            raise RpcError(-32000, "txpool is full", b"")

    rpc.script = never_take
    sender = make_sender(
        rpc, journal, bump_seconds=0.0, inclusion_seconds=0.3, policy=ChainPolicy(max_fee=2 * base_fee + 2)
    )
    with pytest.raises(LedgerUnavailable, match="not in a block yet"):
        await sender.send(rpc.registry.address, commit_data(0))
    assert offered(journal) <= 2 * base_fee + 2
    assert rpc.broadcasts > 1
    assert len(set(left_over(journal))) == 1


async def test_send__waits_while_gas_costs_more_than_the_cap(rpc: ScriptedRpc, journal: Path) -> None:
    with pytest.raises(LedgerUnavailable, match="the cap is"):
        await make_sender(rpc, journal, policy=ChainPolicy(max_fee=1)).send(rpc.registry.address, commit_data(0))
    assert rpc.broadcasts == 0
    assert left_over(journal) == []


async def test_send__what_no_block_takes_is_refused_at_once(rpc: ScriptedRpc, journal: Path) -> None:
    rpc.answers = {"eth_estimateGas": [hex(40_000_000)]}
    with pytest.raises(LedgerRejected, match="exceeds block gas limit"):
        await make_sender(rpc, journal).send(rpc.registry.address, commit_data(0))
    assert left_over(journal) == []


async def test_send__processes_that_share_a_folder_take_turns__chain_13(rpc: ScriptedRpc, journal: Path) -> None:
    first, second = make_sender(rpc, journal), make_sender(rpc, journal)  # CHAIN-13
    await asyncio.gather(*(each.send(ADDRESSES[11], "0x", 1) for each in (first, second) for _ in range(3)))
    assert rpc.registry.chain.nonce(address_of(TRAINER)) == rpc.broadcasts == 6


NO_NUMBERS: tuple[Any, ...] = (None, "", "0x", "-0x5", 5, [], "0x" + "f" * 65)
NO_BLOCKS: tuple[Any, ...] = (
    None,
    {},
    [],
    "0x",
    {"baseFeePerGas": None},
    {"baseFeePerGas": "-0x5"},
    {"baseFeePerGas": "0x" + "f" * 64},
)
NO_RECEIPTS: tuple[Any, ...] = (
    "0x",
    [],
    {},
    {"blockNumber": "0x1"},
    {"status": 1, "blockNumber": "0x1"},
    {"status": "0x1"},
)
LIES = [
    *[("eth_getBlockByNumber", lie) for lie in NO_BLOCKS],
    *[("eth_getTransactionReceipt", lie) for lie in NO_RECEIPTS],
    *[
        (method, lie)
        for method in ("eth_estimateGas", "eth_getTransactionCount", "eth_maxPriorityFeePerGas", "eth_blockNumber")
        for lie in (*NO_NUMBERS, "0x" + "f" * 64)
    ],
    *[("eth_getBalance", lie) for lie in NO_NUMBERS],
]


@pytest.mark.parametrize(
    ("method", "lie", "confirmations"),
    [*[(*each, 1) for each in LIES], *[(*each, 2) for each in LIES if each[0] == "eth_blockNumber"]],
)
async def test_send__what_is_no_answer_decides_nothing__chain_25(
    rpc: ScriptedRpc, journal: Path, method: str, lie: Any, confirmations: int
) -> None:  # CHAIN-25
    rpc.answers = {method: [lie]}
    sender = make_sender(rpc, journal, policy=ChainPolicy(confirmations=confirmations))
    with pytest.raises(LedgerUnavailable, match="the RPC end-point answered"):
        await sender.send(ADDRESSES[11], "0x", 5)
    is_after = method in ("eth_getTransactionReceipt", "eth_blockNumber")
    assert rpc.broadcasts == len(left_over(journal)) == is_after  # what went out stays in the journal
    rpc.script = lambda called: rpc.registry.skip(1) if called == "eth_blockNumber" else None
    await sender.send(ADDRESSES[11], "0x", 5)
    assert rpc.registry.chain.balance(ADDRESSES[11]) == BALANCE + 5
    assert rpc.registry.chain.nonce(address_of(TRAINER)) == 1
    assert left_over(journal) == []


@pytest.mark.parametrize("lie", NO_NUMBERS)
async def test_send__no_gas_price_decides_nothing__chain_25(rpc: ScriptedRpc, journal: Path, lie: Any) -> None:
    def refuse(called: str) -> None:
        if called == "eth_maxPriorityFeePerGas":
            raise RpcError(-32601, "unknown method", b"")

    rpc.script, rpc.answers = refuse, {"eth_gasPrice": [lie]}
    with pytest.raises(LedgerUnavailable, match="the RPC end-point answered"):
        await make_sender(rpc, journal).send(ADDRESSES[11], "0x", 5)
    assert rpc.broadcasts == 0
    assert left_over(journal) == []


@pytest.mark.parametrize("lie", NO_NUMBERS)
async def test_send__no_balance_where_coins_are_said_to_be_missing__chain_25(
    rpc: ScriptedRpc, journal: Path, lie: Any
) -> None:
    def refuse(called: str) -> None:
        if called == "eth_sendRawTransaction":
            rpc.answers = {"eth_getBalance": [lie]}
            raise RpcError(-32000, "insufficient funds for gas * price + value", b"")

    rpc.script = refuse
    sender = make_sender(rpc, journal)
    with pytest.raises(LedgerUnavailable, match="the RPC end-point answered"):
        await sender.send(ADDRESSES[11], "0x", 5)
    assert len(left_over(journal)) == 1
    rpc.script = lambda method: None
    await sender.send(ADDRESSES[11], "0x", 5)
    assert rpc.registry.chain.balance(ADDRESSES[11]) == BALANCE + 5


@pytest.mark.parametrize("lie", NO_RECEIPTS)
async def test_deploy__no_receipt_deploys_nothing_twice__chain_25(rpc: ScriptedRpc, journal: Path, lie: Any) -> None:
    made = await make_sender(rpc, journal).deploy(abi.built()["bytecode"])
    rpc.answers = {"eth_getTransactionReceipt": [lie]}
    restarted = make_sender(rpc, journal)
    with pytest.raises(LedgerUnavailable, match="the RPC end-point answered"):
        await restarted.deploy(abi.built()["bytecode"])
    assert await restarted.deploy(abi.built()["bytecode"]) == made
    assert rpc.broadcasts == 1


async def test_send__another_transactions_receipt_is_not_its_own__chain_25(rpc: ScriptedRpc, journal: Path) -> None:
    other = await make_sender(rpc, None).send(ADDRESSES[11], "0x", 1)
    rpc.answers = {"eth_getTransactionReceipt": [other]}
    sender = make_sender(rpc, journal)
    with pytest.raises(LedgerUnavailable, match="another transaction"):
        await sender.send(ADDRESSES[11], "0x", 5)
    assert len(left_over(journal)) == 1
    receipt = await sender.send(ADDRESSES[11], "0x", 5)
    assert receipt["transactionHash"] != other["transactionHash"]
    assert rpc.registry.chain.balance(ADDRESSES[11]) == BALANCE + 6


@pytest.mark.parametrize(
    ("method", "lie"), [*LIES, *[("eth_sendRawTransaction", lie) for lie in (None, "0x")], ("eth_chainId", "-0x5")]
)
async def test_send__beside_one_that_lies_the_next_is_asked__chain_25(
    journal: Path, rpc: ScriptedRpc, method: str, lie: Any
) -> None:
    line = Lying(rpc.registry, {method: lie})
    connected = line.rpc("liar", "honest")
    sender = Sender(connected, TRAINER, chain_id=CHAIN_ID, journal=journal, policy=ChainPolicy())
    await sender.send(ADDRESSES[11], "0x", 5)
    assert ("liar", method) in line.asked
    assert rpc.registry.chain.balance(ADDRESSES[11]) == BALANCE + 5
    assert rpc.registry.chain.nonce(address_of(TRAINER)) == 1
    await connected.close()


def test_sender__refuses_a_broken_journal(rpc: ScriptedRpc, journal: Path) -> None:
    journal.write_text("{}")
    with pytest.raises(LedgerError, match="not a transaction journal"):
        make_sender(rpc, journal)


def test_sender__a_journal_that_cannot_be_read_is_not_called_broken(rpc: ScriptedRpc, journal: Path) -> None:
    """If the user removed it, a pending payment would be made again."""
    journal.mkdir()
    with pytest.raises(LedgerError, match=r"cannot read .*transaction\.json, a transaction under way: Is a directory"):
        make_sender(rpc, journal)


@pytest.mark.parametrize(
    ("field", "damaged"),
    [
        ("nonce", 7),
        ("value", 4),
        ("data", "0x01"),
        ("to", ADDRESSES[10]),
        ("hashes", ["ab" * 32]),
        ("attempts", ["02f8"]),
        ("attempts", []),
    ],
)
async def test_sender__refuses_a_journal_with_another_transaction_than_the_one_signed(
    rpc: ScriptedRpc, journal: Path, field: str, damaged: object
) -> None:
    """A bit of the file has flipped: the payment would be searched for in vain, and made again."""
    rpc.late_receipts = 10**9
    with pytest.raises(LedgerUnavailable):
        await make_sender(rpc, journal, inclusion_seconds=0.0).send(ADDRESSES[11], "0x", 5)
    spoil(journal, **{field: damaged})
    with pytest.raises(LedgerError, match="not a transaction journal: see what it holds"):
        make_sender(rpc, journal)


def fund_data(amount: int) -> str:
    return abi.encode_call("fund", bytes.fromhex(RUN), amount)


def funded(registry: Registry) -> int:
    """Base units the run was funded with."""
    return int(registry.view("pools", bytes.fromhex(RUN))[0][0])


async def test_send__an_end_point_that_hides_receipts__a_payment_is_made_once(rpc: ScriptedRpc, journal: Path) -> None:
    rpc.late_receipts = 10**9
    sender = make_sender(rpc, journal)
    for _ in range(2):  # asked for again, it is still the one that was sent
        with pytest.raises(LedgerUnavailable, match="is not paid again"):
            await sender.send(rpc.registry.address, fund_data(1000), 1000)
    assert funded(rpc.registry) == 1000
    assert rpc.registry.chain.nonce(sender.address) == 1
    assert len(left_over(journal)) == 1
    rpc.late_receipts = 0
    await sender.send(rpc.registry.address, fund_data(1000), 1000)
    assert (funded(rpc.registry), left_over(journal)) == (1000, [])


async def test_send__a_payment_in_tokens_carries_no_value_and_is_made_once_too(rpc: ScriptedRpc, journal: Path) -> None:
    rpc.late_receipts = 10**9
    sender = make_sender(rpc, journal)
    with pytest.raises(LedgerUnavailable, match="is not paid again"):
        await sender.send(ADDRESSES[11], fund_data(1000))
    assert rpc.registry.chain.nonce(sender.address) == 1


async def test_settle__payment_whose_receipt_is_hidden_stays_in_the_journal(rpc: ScriptedRpc, journal: Path) -> None:
    rpc.late_receipts = 10**9
    sender = make_sender(rpc, journal)
    for call in (sender.send(ADDRESSES[11], "0x", 5), sender.send(ADDRESSES[11], "0x", 6), sender.settle()):
        with pytest.raises(LedgerUnavailable, match="is not paid again"):
            await call
    assert rpc.registry.chain.balance(ADDRESSES[11]) == BALANCE + 5
    assert len(left_over(journal)) == 1


def hiding(registry: Registry) -> Lying:
    """The end-point called `liar` shows no receipt."""
    return Lying(registry, {"eth_getTransactionReceipt": None})


async def test_send__another_end_point_shows_the_hidden_receipt(rpc: ScriptedRpc, journal: Path) -> None:
    sender = make_sender(hiding(rpc.registry).rpc("liar", "honest"), journal)
    receipt = await sender.send(rpc.registry.address, fund_data(1000), 1000)
    assert receipt["status"] == "0x1"
    assert funded(rpc.registry) == 1000
    assert left_over(journal) == []


async def test_send__two_end_points_say_that_its_nonce_was_taken__the_payment_is_made(
    rpc: ScriptedRpc, journal: Path
) -> None:
    class Taking(Lying):
        """Lets another transaction of the same key go first."""

        async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
            if not steps(rpc) and json.loads(await request.aread())["method"] == "eth_sendRawTransaction":
                rpc.registry.transact(TRAINER, rpc.registry.address, commit_data(0))
            return await super().handle_async_request(request)

    way = Taking(rpc.registry, {})
    await make_sender(way.rpc("one", "other"), journal).send(ADDRESSES[11], "0x", 5)
    assert rpc.registry.chain.balance(ADDRESSES[11]) == BALANCE + 5
    assert rpc.registry.chain.nonce(address_of(TRAINER)) == 2


def _operators() -> tuple[list[tuple[bytes, str, str]], list[tuple[bytes, str, str]]]:
    one = [(b"\x01" * 32, address_of(KEYS[1]), address_of(KEYS[1]))]
    return one, one
