"""JSON-RPC over HTTP to a development chain: only the methods that our clients call."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from eth_utils.address import is_hex_address

from ledger.abi import revert_reason, unhex
from ledger.chain_json import Json
from ledger.evm import CHAIN_ID, DevChain, Refused, Reverted
from ledger.wallet import NO_ADDRESS

MAX_BODY = 512 * 1024
MAX_BATCH = 64
MAX_LOG_RANGE = 10_000
PRIORITY_FEE = 10**9
NEWEST = ("latest", "pending", "safe", "finalized")


class BadRequest(Exception):
    """The caller's parameters are wrong."""


class DevnetRpc:
    """JSON-RPC methods over a `DevChain`; an ASGI application."""

    def __init__(self, chain: DevChain) -> None:
        self._chain = chain
        self._methods: dict[str, Callable[..., Any]] = {
            "web3_clientVersion": lambda: "intellect-node-devnet/1",
            "net_version": lambda: str(CHAIN_ID),
            "eth_chainId": lambda: hex(CHAIN_ID),
            "eth_syncing": lambda: False,
            "eth_accounts": list,
            "eth_blockNumber": lambda: chain.head["number"],
            "eth_gasPrice": lambda: hex(int(chain.head["baseFeePerGas"], 16) + PRIORITY_FEE),
            "eth_maxPriorityFeePerGas": lambda: hex(PRIORITY_FEE),
            "eth_getBlockByNumber": lambda tag, full=False: chain.block(self._number(tag)),
            "eth_getBlockByHash": lambda digest, full=False: chain.block_by_hash(digest),
            "eth_getCode": lambda address, tag="latest": "0x" + chain.code(_address(address)).hex(),
            "eth_getBalance": lambda address, tag="latest": hex(chain.balance(_address(address))),
            "eth_getTransactionCount": lambda address, tag="latest": hex(chain.nonce(_address(address))),
            "eth_getTransactionReceipt": lambda digest: chain.receipt(digest),
            "eth_sendRawTransaction": lambda raw: chain.send(unhex(raw)),
            "eth_call": lambda call, tag="latest": "0x" + self._call(call)[0].hex(),
            "eth_estimateGas": lambda call, tag="latest": hex(self._call(call)[1] * 11 // 10),
            "eth_getLogs": self._logs,
        }

    async def __call__(self, scope: Mapping[str, Any], receive: Callable[..., Any], send: Callable[..., Any]) -> None:
        """Answer one HTTP request."""
        if scope["type"] != "http":
            return
        status, answer = 405, b"POST JSON-RPC here\n"
        if scope["method"] == "POST":
            body = await _read_body(receive)
            status, answer = (413, b"body too large\n") if body is None else (200, self.answer(body))
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(answer)).encode())]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": answer})

    def answer(self, body: bytes) -> bytes:
        """Response to a request or a batch. Never raises, whatever the caller sends."""
        try:
            request = json.loads(body)
        except (ValueError, RecursionError):
            return json.dumps(_error(None, -32700, "not JSON")).encode()
        if isinstance(request, list) and 0 < len(request) <= MAX_BATCH:
            return json.dumps([self._answer_one(each) for each in request]).encode()
        return json.dumps(self._answer_one(request)).encode()

    def _answer_one(self, request: Any) -> Json:
        if not isinstance(request, dict) or not isinstance(request.get("method"), str):
            return _error(None, -32600, "not a request")
        number, method = request.get("id"), self._methods.get(request["method"])
        parameters = request.get("params") or []
        if method is None:
            return _error(number, -32601, f"unknown method {request['method'][:64]}")
        try:
            return {"jsonrpc": "2.0", "id": number, "result": method(*parameters)}
        except Reverted as error:
            text = f"execution reverted: {revert_reason(error.data) or ''}"
            return {**_error(number, 3, text, "0x" + error.data.hex())}
        except Refused as error:
            return _error(number, -32000, str(error))
        except OSError as error:
            return _error(number, -32000, f"the chain cannot write its journal: {error.strerror}")
        except (BadRequest, TypeError, ValueError, KeyError, AttributeError) as error:
            return _error(number, -32602, f"wrong parameters: {error}")

    def _number(self, tag: Any) -> int:
        if tag in NEWEST:
            return int(self._chain.head["number"], 16)
        return 0 if tag == "earliest" else int(tag, 16)

    def _call(self, call: Json) -> tuple[bytes, int]:
        return self._chain.call(
            sender=_address(call.get("from") or NO_ADDRESS),
            to=_address(call["to"]) if call.get("to") else None,
            data=unhex(call.get("data") or call.get("input") or "0x"),
            value=int(call.get("value") or "0x0", 16),
        )

    def _logs(self, query: Json) -> list[Json]:
        first = self._number(query.get("fromBlock", "latest"))
        last = self._number(query.get("toBlock", "latest"))
        if last - first > MAX_LOG_RANGE:
            raise BadRequest(f"more than {MAX_LOG_RANGE} blocks")
        wanted = query.get("address") or []
        addresses = {_address(each).lower() for each in (wanted if isinstance(wanted, list) else [wanted])}
        topics = query.get("topics") or []
        return [log for log in self._chain.logs(first, last) if _is_wanted(log, addresses, topics)]


async def _read_body(receive: Callable[..., Any]) -> bytes | None:
    """The request body; None when it is too large."""
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        part = message.get("body", b"")
        size += len(part)
        if size > MAX_BODY:
            return None
        parts.append(part)
        if not message.get("more_body", False):
            return b"".join(parts)


def _is_wanted(log: Json, addresses: set[str], topics: list[Any]) -> bool:
    if addresses and log["address"].lower() not in addresses:
        return False
    if len(topics) > len(log["topics"]):
        return False
    pairs = zip(topics, log["topics"], strict=False)
    return all(want is None or have in (want if isinstance(want, list) else [want]) for want, have in pairs)


def _address(text: Any) -> str:
    if not isinstance(text, str) or not is_hex_address(text):
        raise BadRequest("not an address")
    return text


def _error(number: Any, code: int, message: str, data: str | None = None) -> Json:
    error: Json = {"code": code, "message": message}
    if data is not None:
        error["data"] = data
    return {"jsonrpc": "2.0", "id": number, "error": error}
