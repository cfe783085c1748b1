"""Requests to end-points that fail, lie or babble."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable

import httpx
import pytest

from ledger.errors import LedgerError, LedgerMismatch, LedgerUnavailable
from ledger.rpc import MAX_ANSWER, NOTHING_EXPECTED, ExpectedChain, Rpc, RpcError

CONTRACT = "0x" + "11" * 20
ONE, TWO = "http://one", "http://two/v3/secret"
Answer = Callable[[str], httpx.Response]


def result(value: object) -> httpx.Response:
    return httpx.Response(200, json={"jsonrpc": "2.0", "id": 1, "result": value})


def honest(method: str) -> httpx.Response:
    return result({"eth_chainId": "0x1", "eth_getCode": "0x6001", "eth_blockNumber": "0x5"}[method])


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


@pytest.mark.parametrize("shown", [None, {"number": "0x3", "hash": "0xab"}, "rival", "babble"])
async def test_connect__every_end_point_shows_the_deployments_block__chain_15(shown: object) -> None:  # CHAIN-15
    """None: another chain. A rival: the block is known, but another stands in its place."""
    deployed = {"number": "0x3", "hash": "0xab"}

    def serve(method: str, held: object, canonical: object) -> httpx.Response:
        blocks = {"eth_getBlockByHash": held, "eth_getBlockByNumber": canonical}
        return result(blocks[method]) if method in blocks else honest(method)

    second = {"rival": (deployed, {"number": "0x3", "hash": "0xcd"}), "babble": ([], None)}.get(
        str(shown), (shown, shown)
    )
    rpc = make_rpc(
        lambda method: serve(method, deployed, deployed),
        lambda method: serve(method, *second),
        expected=ExpectedChain(deployment_block="ab"),
    )
    if shown in (deployed, "babble"):  # one that babbles has not answered
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
    assert asked[-2:] == ["two eth_blockNumber"] * 2
    await rpc.close()


@pytest.mark.parametrize("urls", [[], ["ftp://x"], ["localhost:8545"], ["http://"], ["http://x"] * 17])
def test_rpc__refuses_bad_addresses(urls: list[str]) -> None:
    with pytest.raises(LedgerError):
        Rpc(urls)
