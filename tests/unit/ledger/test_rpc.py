"""Requests to end-points that fail, lie or return garbage."""

from __future__ import annotations

import gzip
import json
import time
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from ledger.errors import LedgerError, LedgerMismatch, LedgerUnavailable
from ledger.json_rpc import MAX_ANSWER, RpcError
from ledger.rpc import NOTHING_EXPECTED, ExpectedChain, Rpc

CONTRACT = "0x" + "11" * 20
ONE, TWO = "http://one", "http://two/v3/secret"
Answer = Callable[[str], httpx.Response]


def result(value: object) -> httpx.Response:
    return httpx.Response(200, json={"jsonrpc": "2.0", "id": 1, "result": value})


def block(number: int = 5, *, letter: str = "a", age: float = 0, **changes: Any) -> dict[str, Any]:
    """A block made `age` seconds ago."""
    made = {"number": hex(number), "timestamp": hex(int(time.time() - age)), "baseFeePerGas": "0x7"}
    return {**made, "hash": "0x" + 64 * letter, **changes}


def honest(method: str) -> httpx.Response:
    return result(HONEST[method])


HASH = "0x" + "a" * 64
LOG = {"blockNumber": "0x5", "logIndex": "0x0", "data": "0x00", "topics": [HASH]}
RECEIPT = {"status": "0x1", "blockNumber": "0x5", "blockHash": HASH, "gasUsed": "0x5208", "transactionHash": HASH}
HONEST: dict[str, Any] = {
    "eth_chainId": "0x1",
    "eth_getCode": "0x6001",
    "eth_blockNumber": "0x5",
    "eth_call": "0x" + "00" * 32,
    "eth_estimateGas": "0x5208",
    "eth_gasPrice": "0x9",
    "eth_getBalance": "0x" + "f" * 64,
    "eth_getBlockByHash": block(),
    "eth_getBlockByNumber": block(),
    "eth_getLogs": [LOG],
    "eth_getTransactionCount": "0x3",
    "eth_getTransactionReceipt": RECEIPT,
    "eth_maxPriorityFeePerGas": "0x1",
    "eth_sendRawTransaction": HASH,
}
PARAMETERS: dict[str, tuple[Any, ...]] = {
    "eth_getBlockByHash": (HASH, False),
    "eth_getBlockByNumber": ("latest", False),
    "eth_getLogs": ({"fromBlock": "0x2", "toBlock": "0x9"},),
    "eth_getTransactionReceipt": (HASH,),
}
NO_NUMBERS: list[Any] = [
    None,
    True,
    5,
    0.5,
    "",
    "5",
    "0x",
    "-0x5",
    "0x-5",
    "0x5 ",
    "0x5\n",
    "0x_5",
    "0xG",
    "0X5",
    "0x" + "f" * 65,
    [],
    {},
]
SMALL_NUMBERS = (
    "eth_blockNumber",
    "eth_estimateGas",
    "eth_gasPrice",
    "eth_getTransactionCount",
    "eth_maxPriorityFeePerGas",
)
TOO_LARGE = [hex(2**63), "0x" + "f" * 64]
LIES = {
    **{each: [*NO_NUMBERS, TOO_LARGE[-1]] for each in SMALL_NUMBERS},
    "eth_chainId": NO_NUMBERS,
    "eth_getBalance": NO_NUMBERS,
    "eth_getBlockByNumber": [
        *[None, "0x", [], {}, *[block(number=each) for each in (2**63, 2**256 - 1)]],
        *[{**block(), name: lie} for name in ("number", "timestamp") for lie in [*NO_NUMBERS, *TOO_LARGE]],
        *[block(hash=lie) for lie in (None, 5, "0x", "0xab", HASH + "a", HASH[2:])],
        *[block(baseFeePerGas=lie) for lie in NO_NUMBERS],
    ],
    "eth_getBlockByHash": ["0x", [], {}, block(letter="b")],
    "eth_getTransactionReceipt": [
        *["0x", [], {}, {"blockNumber": "0x1"}, {**RECEIPT, "transactionHash": "0x" + "b" * 64}],
        *[{**RECEIPT, "blockNumber": lie} for lie in [*NO_NUMBERS[1:], *TOO_LARGE]],
        *[{**RECEIPT, "gasUsed": lie} for lie in [*NO_NUMBERS, *TOO_LARGE]],
        *[{**RECEIPT, "status": lie} for lie in [*NO_NUMBERS, 1, "0x2"]],
        *[{**RECEIPT, "blockHash": lie} for lie in (None, "0x")],
        *[{**RECEIPT, "contractAddress": lie} for lie in (5, "0x", "0x" + "g" * 40)],
    ],
    "eth_getLogs": [
        *[None, "0x", {}, [None], ["0x"], [{}], [{**LOG, "blockNumber": "0x1"}], [{**LOG, "blockNumber": "0xa"}]],
        *[[{**LOG, name: lie}] for name in ("blockNumber", "logIndex") for lie in [*NO_NUMBERS, *TOO_LARGE]],
        *[[{**LOG, "data": lie}] for lie in (None, "", "00", "0x0", "0xzz")],
        *[[{**LOG, "topics": lie}] for lie in (None, HASH, [None], ["0x"], [HASH] * 5)],
    ],
    "eth_call": [None, 5, "", "00", "0x0", "0xzz", "0x00 00", [], {}],
    "eth_getCode": [None, 5, "", "00", "0x0", "0xzz", [], {}],
    "eth_sendRawTransaction": [None, True, "0x", "0xab", {}],
}
"""Invalid responses, by method."""


def make_rpc(*answers: Answer, patience: float = 0.0, expected: ExpectedChain = NOTHING_EXPECTED) -> Rpc:
    """An Rpc whose first end-point answers with the first function, and so on."""

    def serve(request: httpx.Request) -> httpx.Response:
        index = 0 if request.url.host == "one" else 1
        return answers[index](json.loads(request.content)["method"])

    urls = [ONE, TWO][: len(answers)]
    transport = httpx.MockTransport(serve)
    return Rpc(urls, contract=CONTRACT, expected=expected, patience=patience, transport=transport)


def broken(method: str) -> httpx.Response:
    raise httpx.ConnectError("refused")


@pytest.mark.parametrize(
    "babble",
    [
        httpx.Response(502, text="<html>bad gateway</html>"),
        httpx.Response(429, json={"jsonrpc": "2.0", "id": 1, "error": {"code": -32005, "message": "slow down"}}),
        httpx.Response(
            200, json={"id": 1, "error": {"code": -32005, "message": "daily request count: Rate limit hit"}}
        ),
        httpx.Response(200, text="[" * 100_000),
        httpx.Response(200, json=[]),
        httpx.Response(200, json={"id": 1}),
        httpx.Response(200, content=b"\xff\xfe"),
    ],
)
async def test_call__goes_on_to_the_next_end_point(babble: httpx.Response) -> None:
    rpc = make_rpc(lambda _: httpx.Response(babble.status_code, content=babble.content), honest)
    assert await rpc.call("eth_blockNumber") == "0x5"
    await rpc.close()


async def test_call__a_compressed_answer_is_not_unpacked() -> None:
    bomb = gzip.compress(json.dumps({"jsonrpc": "2.0", "id": 1, "result": "0" * 10**6}).encode())
    rpc = make_rpc(lambda _: httpx.Response(200, content=bomb, headers={"Content-Encoding": "gzip"}))
    with pytest.raises(LedgerUnavailable, match="a compressed answer"):
        await rpc.call("eth_blockNumber")
    await rpc.close()


async def test_call__bounds_an_answer() -> None:
    rpc = make_rpc(lambda _: httpx.Response(200, content=bytes(MAX_ANSWER + 1)))
    with pytest.raises(LedgerUnavailable, match="too large"):
        await rpc.call("eth_blockNumber")
    await rpc.close()


async def test_call__says_who_failed_and_hides_the_path() -> None:
    rpc = make_rpc(broken, broken)
    with pytest.raises(LedgerUnavailable) as outage:
        await rpc.call("eth_blockNumber")
    assert "two" in str(outage.value)
    assert "secret" not in str(outage.value)
    await rpc.close()


async def test_call__tries_again_while_patience_lasts() -> None:
    failures = [broken, broken]

    def recovering(method: str) -> httpx.Response:
        return failures.pop()(method) if failures else honest(method)

    rpc = make_rpc(recovering, patience=5.0)
    assert await rpc.call("eth_blockNumber") == "0x5"
    await rpc.close()


@pytest.mark.parametrize(
    ("error", "data"),
    [
        ({"code": 3, "message": "execution reverted", "data": "0x08c379a0"}, "08c379a0"),
        ({"code": -32000, "message": "reverted", "data": {"data": "0xab"}}, "ab"),
        ({"code": "x", "message": "odd", "data": "0xzz"}, ""),
        ("text", ""),
    ],
)
async def test_call__an_error_is_the_answer(error: object, data: str) -> None:
    def serve(method: str) -> httpx.Response:
        return honest(method) if method != "eth_call" else httpx.Response(200, json={"id": 1, "error": error})

    rpc = make_rpc(serve)
    with pytest.raises(RpcError) as refusal:
        await rpc.call("eth_call")
    assert refusal.value.data.hex() == data
    await rpc.close()


@pytest.mark.parametrize(
    ("method", "value"), [("eth_chainId", "0x2"), ("eth_getCode", "0x6002"), ("eth_getCode", "0x")]
)
async def test_connect__refuses_disagreement__chain_15(method: str, value: str) -> None:  # CHAIN-15
    rpc = make_rpc(honest, lambda called: result(value) if called == method else honest(called))
    with pytest.raises(LedgerMismatch):
        await rpc.connect()
    await rpc.close()


async def test_call__an_end_point_that_appears_later_is_checked_before_it_is_trusted() -> None:
    state = {"one": honest, "two": broken}
    rpc = make_rpc(lambda method: state["one"](method), lambda method: state["two"](method))
    assert (await rpc.connect())[0] == 1
    state["one"], state["two"] = broken, lambda method: result("0x99")
    with pytest.raises(LedgerMismatch):
        await rpc.call("eth_blockNumber")
    await rpc.close()


@pytest.mark.parametrize("shown", [None, "deployed", "rival", "babble"])
async def test_connect__every_end_point_shows_the_deployments_block__chain_15(shown: object) -> None:  # CHAIN-15
    """None: another chain. A rival: the block is known, but another one is canonical in its place."""
    deployed = block(3)

    def serve(method: str, held: object, canonical: object) -> httpx.Response:
        blocks = {"eth_getBlockByHash": held, "eth_getBlockByNumber": canonical}
        return result(blocks[method]) if method in blocks else honest(method)

    second: tuple[object, object] = {
        "deployed": (deployed, deployed),
        "rival": (deployed, block(3, letter="c")),
        "babble": ([], None),
    }.get(str(shown), (shown, shown))
    rpc = make_rpc(
        lambda method: serve(method, deployed, deployed),
        lambda method: serve(method, *second),
        expected=ExpectedChain(deployment_block=HASH[2:]),
    )
    if shown in ("deployed", "babble"):  # one that babbles has not answered
        assert (await rpc.connect())[0] == 1
    else:
        with pytest.raises(LedgerMismatch, match="deployment block"):
            await rpc.connect()
    await rpc.close()


async def test_together__asks_one_end_point() -> None:
    asked: list[str] = []

    def fail_at_the_second(method: str) -> httpx.Response:
        asked.append(f"one {method}")
        if asked.count("one eth_blockNumber") > 1:
            raise httpx.ConnectError("gone")
        return honest(method)

    def second(method: str) -> httpx.Response:
        asked.append(f"two {method}")
        return honest(method)

    rpc = make_rpc(fail_at_the_second, second)
    assert await rpc.together(("eth_blockNumber",), ("eth_blockNumber",)) == ["0x5", "0x5"]
    assert [each for each in asked if each == "two eth_blockNumber"] == ["two eth_blockNumber"] * 2
    await rpc.close()


@pytest.mark.parametrize("urls", [[], ["ftp://x"], ["localhost:8545"], ["http://"], ["http://x"] * 17])
def test_rpc__refuses_bad_addresses(urls: list[str]) -> None:
    with pytest.raises(LedgerError):
        Rpc(urls)


@pytest.mark.parametrize("method", LIES)
async def test_call__what_is_no_answer_counts_against_the_end_point_and_the_next_is_asked(method: str) -> None:
    """Every lie for every method, to `Rpc` itself: one honest end-point beside the liar is enough."""
    for lie in LIES[method]:
        asked: list[str] = []

        def lying(called: str, lie: object = lie, asked: list[str] = asked) -> httpx.Response:
            asked.append(called)
            return result(lie) if called == method else honest(called)

        rpc = make_rpc(lying, honest)
        assert await rpc.call(method, *PARAMETERS.get(method, ())) == HONEST[method], lie
        assert method in asked
        alone = make_rpc(lying)
        with pytest.raises(LedgerUnavailable):
            await alone.call(method, *PARAMETERS.get(method, ()))
        await rpc.close()
        await alone.close()


async def test_call__another_block_than_the_one_asked_for_is_no_answer() -> None:
    lying, honestly = ({**HONEST, "eth_getBlockByNumber": block(number)} for number in (6, 5))
    rpc = make_rpc(lambda method: result(lying[method]), lambda method: result(honestly[method]))
    assert (await rpc.call("eth_getBlockByNumber", "0x5", False))["number"] == "0x5"
    await rpc.close()


@pytest.mark.parametrize("missing", ["eth_getBlockByNumber", "eth_getBlockByHash", "eth_getTransactionReceipt"])
async def test_call__what_is_not_there_is_an_answer(missing: str) -> None:
    rpc = make_rpc(lambda method: result(None) if method == missing else honest(method), broken)
    parameters: tuple[Any, ...] = ("0x5", False) if missing == "eth_getBlockByNumber" else (HASH,)
    assert await rpc.call(missing, *parameters) is None
    await rpc.close()


def heads(*numbers: int, ages: tuple[float, ...] = (0, 0, 0)) -> tuple[Rpc, list[list[str]], list[int]]:
    """An Rpc over end-points whose newest blocks have these numbers and ages, the requests to each, and the numbers."""
    asked: list[list[str]] = [[] for _ in numbers]
    now = list(numbers)

    def serve(request: httpx.Request) -> httpx.Response:
        index, method = int(request.url.host[1:]), json.loads(request.content)["method"]
        asked[index].append(method)
        if method == "eth_getBlockByNumber":
            return result(block(now[index], age=ages[index]))
        return result(hex(now[index])) if method == "eth_blockNumber" else honest(method)

    urls = [f"http://e{index}" for index in range(len(numbers))]
    return Rpc(urls, contract=CONTRACT, patience=0.0, transport=httpx.MockTransport(serve)), asked, now


FAR = 2**63 - 1


@pytest.mark.parametrize("method", ["eth_getBlockByNumber", "eth_blockNumber"])
@pytest.mark.parametrize(
    ("numbers", "ages", "believed"),
    [
        ((FAR, 100), (0, 0), 100),
        ((FAR, 100, 101), (0, 0, 0), 100),
        ((10**6, 100, 101), (0, 0, 0), 100),
        ((FAR, 100, 101), (-(10**10), 0, 0), 100),  # a time of its own makes no excuse
        ((300, 100), (0, 0), 300),  # as honest end-points differ
        ((10**6, 10, 10**6), (0, 0, 0), 10**6),  # one that holds back is outvoted
        ((10**6, 10**5), (0, 10**5), 10**6),  # one that lags is no witness for the time it lags
        ((FAR, 10**5), (0, 10**5), 10**5),
        ((FAR,), (0,), FAR),  # one alone: its word is all there is
    ],
)
async def test_call__a_newest_block_too_far_ahead_of_the_others_is_not_believed(
    numbers: tuple[int, ...], ages: tuple[float, ...], believed: int, method: str
) -> None:
    rpc, _, _ = heads(*numbers, ages=ages)
    answer = await rpc.call(method, *PARAMETERS.get(method, ()))
    assert int(answer if isinstance(answer, str) else answer["number"], 16) == believed
    await rpc.close()


async def test_call__compares_newest_blocks_only_when_one_leaps() -> None:
    rpc, asked, now = heads(100, 100)
    for number in range(100, 110):
        now[:] = number, number
        assert await rpc.call("eth_blockNumber") == hex(number)
    assert asked[1].count("eth_getBlockByNumber") == 1
    now[:] = FAR, 110
    assert await rpc.call("eth_blockNumber") == hex(110)
    now[:] = 10**6, 10**6  # a machine that slept: all leap alike
    assert await rpc.call("eth_blockNumber") == hex(10**6)
    await rpc.close()


async def test_call__a_head_that_creeps_away_is_found_out() -> None:
    rpc, _, now = heads(100, 100)
    believed = []
    for _ in range(20):
        now[0] += 200
        believed.append(int(await rpc.call("eth_blockNumber"), 16))
    assert max(believed) < 1000
    assert believed[-1] == 100
    await rpc.close()


async def test_call__of_end_points_that_do_not_answer_none_is_a_witness() -> None:
    rpc = make_rpc(honest, broken)
    assert await rpc.call("eth_blockNumber") == "0x5"
    await rpc.close()


async def test_pass_over__asks_another_next() -> None:
    rpc, asked, _ = heads(100, 101)
    assert await rpc.call("eth_getBalance") == HONEST["eth_getBalance"]
    rpc.pass_over()
    await rpc.call("eth_getBalance")
    assert [each.count("eth_getBalance") for each in asked] == [1, 1]
    await rpc.close()
