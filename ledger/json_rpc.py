"""One JSON-RPC request to one end-point, bounded in bytes and time. A response that does
not fit the request is refused.

Plain HTTP rather than a chain library: a node polls up to four times a second, and importing such a library
would cost each process 40 MB.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any

import httpx

from ledger.abi import unhex
from ledger.answers import check_answer
from ledger.errors import LedgerUnavailable

REQUEST_SECONDS = 5.0
MAX_ANSWER = 32 * 1024 * 1024
BUSY = ("rate limit", "too many requests", "request limit", "daily limit", "over capacity", "exceeded its compute")
"""Phrases with which hosted end-points, as an error with HTTP 200, ask to be called again later."""


class RpcError(Exception):
    """The end-point returned an error; `data` is the revert data, if any."""

    def __init__(self, code: int, message: str, data: bytes) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.data = data


class Unreachable(Exception):
    """This end-point gave no usable response; another may."""


class TooMuch(Unreachable):
    """The response would be too large, or did not arrive in time. A smaller request may succeed."""


class JsonRpc:
    """Requests over one connection pool. `is_secure`: whether any end-point uses https."""

    def __init__(self, *, is_secure: bool, most_bytes: int, transport: httpx.AsyncBaseTransport | None) -> None:
        self._most_bytes = most_bytes
        self._http = httpx.AsyncClient(
            timeout=REQUEST_SECONDS,
            trust_env=False,
            verify=is_secure,  # loading certificates takes 100 ms, and plain http does not need them
            transport=transport,
            headers={"Accept-Encoding": "identity"},
        )

    async def close(self) -> None:
        """Close connections."""
        await self._http.aclose()

    async def ask(self, url: str, method: str, parameters: Sequence[object]) -> Any:
        """An end-point's response. Raises RpcError, Unreachable, TooMuch."""
        body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": list(parameters)}
        try:
            async with asyncio.timeout(2 * REQUEST_SECONDS), self._http.stream("POST", url, json=body) as response:
                answer = await _read_answer(response, most=self._most_bytes)
        except (httpx.ReadTimeout, TimeoutError) as error:  # a slow search on the node, or a hang
            kind = TooMuch if method == "eth_getLogs" else Unreachable
            raise kind(type(error).__name__) from error
        except httpx.HTTPError as error:
            raise Unreachable(type(error).__name__) from error
        if answer.get("error") is not None:
            refusal = _rpc_error(answer["error"])
            if any(words in refusal.message.lower() for words in BUSY):
                raise Unreachable(refusal.message)
            raise refusal
        if "result" not in answer:
            raise Unreachable("an answer without result")
        try:
            check_answer(method, parameters, answer["result"])
        except LedgerUnavailable as error:
            raise Unreachable(str(error)) from error
        return answer["result"]


async def _read_answer(response: httpx.Response, *, most: int) -> dict[str, Any]:
    if response.headers.get("content-encoding", "identity") != "identity":  # it could expand to any number of bytes
        raise Unreachable("a compressed answer, which was not asked for")
    parts: list[bytes] = []
    size = 0
    async for part in response.aiter_bytes():
        size += len(part)
        if size > most:
            raise TooMuch("an answer too large")
        parts.append(part)
    try:
        answer = json.loads(b"".join(parts))
    except (ValueError, RecursionError) as error:
        raise Unreachable(f"HTTP {response.status_code}, not JSON") from error
    if not isinstance(answer, dict):
        raise Unreachable(f"HTTP {response.status_code}, not an answer")
    # Rate limits and gateway faults come with a JSON body too; it says nothing about the request.
    if response.status_code == 429 or response.status_code >= 500:
        raise Unreachable(f"HTTP {response.status_code}")
    return answer


def _rpc_error(error: Any) -> RpcError:
    if not isinstance(error, dict):
        return RpcError(0, str(error)[:200], b"")
    data = error.get("data")
    if isinstance(data, dict):  # some end-points nest it
        data = data.get("data") or data.get("result")
    try:
        raw = unhex(data) if isinstance(data, str) else b""
    except ValueError:
        raw = b""
    code = error.get("code")
    return RpcError(code if isinstance(code, int) else 0, str(error.get("message", ""))[:200], raw)
