"""A JSON-RPC end-point over a bad line that drops, delays, repeats and re-orders requests, reproducibly from a seed."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from dataclasses import dataclass, field

import httpx


@dataclass(frozen=True, slots=True)
class Faults:
    """Probability of each fault per request. `late` delivers a request after up to `window` later
    ones; `seconds` limits a `delay`."""

    lost_request: float = 0.05
    lost_answer: float = 0.05
    repeated: float = 0.05
    late: float = 0.05
    delay: float = 0.1
    busy: float = 0.05
    window: int = 6
    seconds: float = 0.02


@dataclass(slots=True)
class _Late:
    due: int
    request: httpx.Request


@dataclass(slots=True)
class BadLine(httpx.AsyncBaseTransport):
    """Wraps a real transport. `happened` counts the faults, `sent` how often each raw transaction was delivered."""

    inner: httpx.AsyncBaseTransport
    faults: Faults = Faults()
    seed: int = 1
    happened: Counter[str] = field(default_factory=Counter)
    requests: int = 0
    _late: list[_Late] = field(default_factory=list)
    _dice: random.Random = field(default_factory=random.Random)

    def __post_init__(self) -> None:
        self._dice.seed(self.seed)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Answer the request, or fail."""
        await request.aread()
        self.requests += 1
        await self._hand_over_late()
        if self._happens("delay", self.faults.delay):
            await asyncio.sleep(self._dice.uniform(0, self.faults.seconds))
        if self._happens("busy", self.faults.busy):
            return httpx.Response(429, json={"jsonrpc": "2.0", "id": 1, "error": {"code": -32005, "message": "slow"}})
        if self._happens("lost_request", self.faults.lost_request):
            raise httpx.ConnectError("the request was lost", request=request)
        if self._happens("late", self.faults.late):
            self._late.append(_Late(self.requests + self._dice.randint(1, self.faults.window), request))
            raise httpx.ReadTimeout("the request is late", request=request)
        if self._happens("repeated", self.faults.repeated):
            await self._pass(request)
        answer = await self._pass(request)
        if self._happens("lost_answer", self.faults.lost_answer):
            raise httpx.ReadError("the answer was lost", request=request)
        return answer

    async def aclose(self) -> None:
        """Close the wrapped transport."""
        await self.inner.aclose()

    def _happens(self, name: str, chance: float) -> bool:
        if self._dice.random() >= chance:
            return False
        self.happened[name] += 1
        return True

    async def _hand_over_late(self) -> None:
        for each in [late for late in self._late if late.due <= self.requests]:
            self._late.remove(each)
            await self._pass(each.request)

    async def _pass(self, request: httpx.Request) -> httpx.Response:
        copy = httpx.Request(request.method, request.url, headers=request.headers, content=request.content)
        answer = await self.inner.handle_async_request(copy)
        content = await answer.aread()
        headers = {"content-type": "application/json"}
        return httpx.Response(answer.status_code, content=content, headers=headers)
