"""The development chain as JSON-RPC over HTTP on loopback: `python -m ledger.devnet --port 8545`.

Owns the RPC surface the client needs and nothing more. Not for other people's money: its keys come from a seed.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import ipaddress
import json
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import uvicorn
from eth_utils.address import is_hex_address

from ledger.abi import revert_reason, unhex
from ledger.accounts import ACCOUNTS, devnet_accounts
from ledger.chain_journal import Genesis
from ledger.chain_json import Json
from ledger.errors import LedgerError
from ledger.evm import CHAIN_ID, DevChain, Refused, Reverted
from ledger.wallet import NO_ADDRESS, address_of, checked_address

MAX_BODY = 512 * 1024
MAX_BATCH = 64
MAX_LOG_RANGE = 10_000
PRIORITY_FEE = 10**9
NEWEST = ("latest", "pending", "safe", "finalized")


__all__ = ["DevnetRpc", "devnet_accounts", "main", "running_devnet"]


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
        """Answer to a request or a batch; never raises for what a caller sends."""
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


@contextlib.asynccontextmanager
async def running_devnet(
    host: str = "127.0.0.1",
    port: int = 0,
    *,
    seed: str,
    journal: Path | None = None,
    block_seconds: float = 1.0,
    fund: Sequence[str] = (),
) -> AsyncIterator[str]:
    """A devnet that answers at the URL it yields, closed in order on leaving. Port 0 takes a free one; with `journal` the
    chain survives a restart; addresses in `fund` hold coins from the start.

    Raises LedgerError when the port is taken or the host is not loopback.
    """
    listener = _listen(host, port)
    failure: Exception | None = None
    try:
        chain = DevChain(_genesis(seed, fund), clock=time.time, journal=journal)
        server = _Server(DevnetRpc(chain))
        async with asyncio.TaskGroup() as tasks:
            serving = tasks.create_task(server.serve(sockets=[listener]))
            mining = tasks.create_task(_mine_on_time(chain, block_seconds))
            await server.answering.wait()
            try:
                yield f"http://{host}:{listener.getsockname()[1]}"
            except Exception as error:
                failure = error  # the user's own: raised below, outside the group that would wrap it
            finally:
                mining.cancel()
                server.should_exit = True
                await asyncio.shield(serving)
        chain.close()
    finally:
        listener.close()
    if failure is not None:
        raise failure


class _Server(uvicorn.Server):
    """uvicorn without its own signal handlers; `answering` is set once it listens."""

    def __init__(self, app: DevnetRpc) -> None:
        config = uvicorn.Config(
            app,
            lifespan="off",
            ws="none",
            log_config=None,
            access_log=False,
            timeout_graceful_shutdown=1,
        )
        super().__init__(config)
        self.answering = asyncio.Event()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Install no handlers: signals belong to whoever runs the loop."""
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, then say so."""
        await super().startup(sockets)
        self.answering.set()


def main(arguments: list[str] | None = None) -> int:
    """Command line: serve until SIGTERM or SIGINT; exit 0, or 1 with a message."""
    parser = argparse.ArgumentParser(prog="python -m ledger.devnet", description="A development chain on loopback.")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8545)
    parser.add_argument("--seed", default="devnet", help="accounts are derived from it")
    parser.add_argument(
        "--fund", action="append", default=[], metavar="ADDRESS", help="address that holds coins too; may be repeated"
    )
    parser.add_argument("--journal", type=Path, help="file that keeps the chain over restarts")
    parser.add_argument("--block-seconds", type=float, default=1.0, help="time between empty blocks")
    options = parser.parse_args(arguments)
    try:
        asyncio.run(_serve_until_signal(options))
    except LedgerError as error:
        sys.stderr.write(f"devnet: {error}\n")
        return 1
    except OSError as error:
        sys.stderr.write(f"devnet: cannot use {error.filename or 'the disk'}: {error.strerror}\n")
        return 1
    return 0


async def _serve_until_signal(options: argparse.Namespace) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with running_devnet(
        options.host,
        options.port,
        seed=options.seed,
        journal=options.journal,
        block_seconds=options.block_seconds,
        fund=options.fund,
    ) as url:
        sys.stdout.write(f"devnet ready {url} chain {CHAIN_ID}\n")
        sys.stdout.flush()
        await stop.wait()


async def _mine_on_time(chain: DevChain, seconds: float) -> None:
    while True:
        await asyncio.sleep(seconds)
        if time.time() >= chain.head_timestamp + 1:
            with contextlib.suppress(
                OSError
            ):  # a full disk: whoever sends is told, and blocks go on once there is room
                chain.mine()


def _genesis(seed: str, fund: Sequence[str]) -> Genesis:
    seeded = (address_of(key) for key in devnet_accounts(ACCOUNTS, seed))
    return Genesis(int(time.time()), tuple(dict.fromkeys([*seeded, *map(checked_address, fund)])))


def _listen(host: str, port: int) -> socket.socket:
    try:
        if not ipaddress.ip_address(host).is_loopback:
            raise LedgerError(f"a devnet serves loopback only, not {host}: anyone could spend its coins")
    except ValueError as error:
        raise LedgerError(f"{host} is not an IP address") from error
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # The protocol must be named: asyncio sets TCP_NODELAY only then, and without it each answer takes 40 ms.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise LedgerError(f"cannot listen on {host}:{port}: {error.strerror}") from error
    return listener


async def _read_body(receive: Callable[..., Any]) -> bytes | None:
    """The request's body; None when it is too large."""
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


if __name__ == "__main__":
    sys.exit(main())
