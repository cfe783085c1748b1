"""JSON-RPC to one of several end-points of the same chain.

Owns fail-over and the check that end-points agree. An end-point that returns garbage, answers another question, or
claims a newest block that the others contradict, is skipped for the next one, as a dead one is. Knows nothing of runs.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar
from urllib.parse import urlsplit

import httpx
import structlog
from eth_utils.crypto import keccak

from ledger.abi import unhex
from ledger.answers import parse_block, place, quantity
from ledger.errors import LedgerError, LedgerMismatch, LedgerUnavailable
from ledger.heads import Claim, is_contradicted, is_leap
from ledger.json_rpc import MAX_ANSWER, REQUEST_SECONDS, JsonRpc, RpcError, TooMuch, Unreachable

log = structlog.get_logger(__name__)

PATIENCE_SECONDS = 10.0
MAX_URLS = 16
FIRST_PAUSE = 0.1
LONGEST_PAUSE = 2.0
NEWEST = ("latest", False)
T = TypeVar("T")


Request = tuple[str, *tuple[object, ...]]
"""A method and its parameters."""


class Caller(Protocol):
    """Anything that answers JSON-RPC requests."""

    async def call(self, method: str, *parameters: object) -> Any: ...


class PinnedCaller(Caller, Protocol):
    """A Caller that can also send several requests to the same end-point, so that the responses are consistent."""

    async def together(self, *requests: Request) -> list[Any]: ...

    async def everywhere(self, *requests: Request) -> list[list[Any]]:
        """The responses to all requests, from each end-point that can be reached."""
        ...


class Connection(PinnedCaller, Protocol):
    """A PinnedCaller that is closed when it is no longer needed."""

    async def close(self) -> None: ...

    def pass_over(self) -> None:
        """Ask another end-point next, because this one's response proved wrong."""


@dataclass(frozen=True, slots=True)
class ExpectedChain:
    """What every end-point must show, where known: chain id, code hash, and the hash of the deployment's block."""

    chain_id: int | None = None
    code_hash: str | None = None
    deployment_block: str | None = None


NOTHING_EXPECTED = ExpectedChain()


class Rpc:
    """Requests to the first working end-point. Each end-point's chain and contract are checked before it is trusted.

    A single end-point has to be taken at its word. With several, one that disagrees with the others raises
    LedgerMismatch, and so does any that is not what is expected.
    """

    def __init__(
        self,
        urls: Sequence[str],
        *,
        contract: str | None = None,
        expected: ExpectedChain = NOTHING_EXPECTED,
        patience: float = PATIENCE_SECONDS,
        most_bytes: int = MAX_ANSWER,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        if not 0 < len(urls) <= MAX_URLS:
            raise LedgerError(f"give 1 to {MAX_URLS} RPC addresses")
        self._urls = [_checked_url(url) for url in urls]
        self._contract = contract
        self._expected = expected
        self._patience = patience
        self._current = 0
        self._identity: tuple[int, str] | None = None
        self._identities: dict[str, tuple[int, str]] = {}
        self._believed: tuple[int, float] | None = None  # last newest block checked against the others', and when
        self._http = JsonRpc(
            is_secure=any(url.startswith("https") for url in self._urls), most_bytes=most_bytes, transport=transport
        )

    async def connect(self) -> tuple[int, str]:
        """Ask every end-point that answers for its chain id and contract code hash (`keccak256`,
        hex; "" without a contract).

        Raises LedgerUnavailable when none answers, LedgerMismatch when two disagree.
        """
        asked = await asyncio.gather(*(self._identify_quietly(url) for url in self._urls))
        if not any(asked):
            await self.call("eth_chainId")  # waits out a short outage
        if self._identity is None:
            raise LedgerUnavailable("no RPC end-point answers")
        return self._identity

    async def close(self) -> None:
        """Close connections."""
        await self._http.close()

    async def call(self, method: str, *parameters: object) -> Any:
        """Result of a request. Raises RpcError, LedgerMismatch, or LedgerUnavailable once patience is over."""
        return await self._somewhere(lambda url: self._ask(url, method, parameters))

    async def together(self, *requests: Request) -> list[Any]:
        """Results of several requests, sent in this order to one end-point. Raises what `call` raises."""

        async def ask(url: str) -> list[Any]:
            return [await self._ask(url, method, parameters) for method, *parameters in requests]

        return await self._somewhere(ask)

    async def everywhere(self, *requests: Request) -> list[list[Any]]:
        """Results of several requests from every end-point that answers them all. Raises LedgerMismatch."""

        async def ask(url: str) -> list[Any] | None:
            try:
                if url not in self._identities:
                    await self._identify(url)
                return [await self._ask(url, method, parameters) for method, *parameters in requests]
            except (Unreachable, RpcError):
                return None

        return [answers for answers in await asyncio.gather(*map(ask, self._urls)) if answers is not None]

    def pass_over(self) -> None:
        """Ask another end-point next, because this one's response proved wrong."""
        self._current = (self._current + 1) % len(self._urls)

    async def _somewhere(self, ask: Callable[[str], Awaitable[T]]) -> T:
        """The result from the first working end-point. A request that was too large for an end-point is
        not retried in later rounds."""
        loop = asyncio.get_running_loop()
        deadline, pause, last = loop.time() + self._patience, FIRST_PAUSE, ""
        while True:
            too_much: TooMuch | None = None
            for _ in self._urls:
                url = self._urls[self._current]
                try:
                    if url not in self._identities:
                        await self._identify(url)
                    return await ask(url)
                except Unreachable as error:
                    last = f"{_host(url)}: {error}"
                    too_much = error if isinstance(error, TooMuch) else too_much
                    self._current = (self._urls.index(url) + 1) % len(self._urls)
            if too_much is not None:
                raise LedgerUnavailable(f"no RPC end-point gives so much ({last})") from too_much
            if loop.time() + pause > deadline:
                raise LedgerUnavailable(f"no RPC end-point answers ({last})")
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)

    async def _identify_quietly(self, url: str) -> bool:
        try:
            await self._identify(url)
        except Unreachable:
            return False
        return True

    async def _identify(self, url: str) -> None:
        """Check an end-point's chain and contract. Raises Unreachable, or
        LedgerMismatch when they are not the run's."""
        try:
            chain_id = quantity(await self._http.ask(url, "eth_chainId", ()))
            code = b""
            if self._contract:
                code = unhex(await self._http.ask(url, "eth_getCode", (self._contract, "latest")))
        except RpcError as error:
            raise Unreachable(f"not an Ethereum RPC: {error}") from error
        expected, host = self._expected, _host(url)
        if expected.chain_id not in (None, chain_id):
            raise LedgerMismatch(f"{host} serves chain {chain_id}, the run is on chain {expected.chain_id}")
        if self._contract and not code:
            raise LedgerMismatch(f"{host} (chain {chain_id}) has no contract at {self._contract}")
        identity = (chain_id, keccak(code).hex() if code else "")
        if expected.code_hash not in (None, identity[1]):
            raise LedgerMismatch(f"the code {host} shows at {self._contract} is not the contract the run names")
        if expected.deployment_block and not await self._has_block(url, expected.deployment_block):
            raise LedgerMismatch(
                f"{host} serves another chain of the id {chain_id}: the run's deployment block is not on it"
            )
        self._identity = self._identity or identity
        if identity != self._identity:
            raise LedgerMismatch(f"{host} shows another chain or contract than the other RPC addresses")
        self._identities[url] = identity

    async def _has_block(self, url: str, digest: str) -> bool:
        """Whether the block with that hash is on the end-point's canonical chain, not
        on a fork that it merely knows."""
        try:
            held = await self._http.ask(url, "eth_getBlockByHash", ("0x" + digest, False))
            if held is None:
                return False
            canonical = await self._http.ask(url, "eth_getBlockByNumber", (held["number"], False))
            return canonical is not None and parse_block(canonical) == parse_block(held)
        except RpcError:  # some end-points report an unknown block as an error
            return False

    async def _ask(self, url: str, method: str, parameters: Sequence[object]) -> Any:
        """A response that may be believed. Raises RpcError, or Unreachable."""
        answer = await self._http.ask(url, method, parameters)
        if method == "eth_blockNumber":
            await self._check_head(url, Claim(place(answer), int(time.time())))
        elif method == "eth_getBlockByNumber" and parameters[0] == "latest":
            block = parse_block(answer)
            await self._check_head(url, Claim(block.number, block.timestamp))
        return answer

    async def _check_head(self, url: str, claim: Claim) -> None:
        """Compare a claimed newest block with the others', if it is the first or far ahead of the last one compared.
        Raises Unreachable when they contradict it."""
        clock = asyncio.get_running_loop().time()
        if self._believed is not None:
            number, since = self._believed
            if not is_leap(claim.number, since=number, seconds=clock - since):
                return
        claims = await asyncio.gather(*(self._claim_of(each) for each in self._urls if each != url))
        if is_contradicted(claim, [each for each in claims if each], now=int(time.time())):
            log.warning("ledger.contradicted", rpc=_host(url), block=claim.number)
            raise Unreachable(f"its newest block, {claim.number}, lies too far ahead of the others'")
        self._believed = claim.number, clock

    async def _claim_of(self, url: str) -> Claim | None:
        """The newest block an end-point claims; None when it does not answer or serves another chain."""
        try:
            async with asyncio.timeout(REQUEST_SECONDS):
                if url not in self._identities:
                    await self._identify(url)
                block = parse_block(await self._http.ask(url, "eth_getBlockByNumber", NEWEST))
        except (Unreachable, RpcError, LedgerError, TimeoutError):
            return None
        return Claim(block.number, block.timestamp)


def _checked_url(url: str) -> str:
    if urlsplit(url).scheme not in ("http", "https") or not urlsplit(url).hostname:
        raise LedgerError(f"not an RPC address: {url[:100]!r} (expected http:// or https://)")
    return url


def _host(url: str) -> str:
    """Host and port only, because the paths of hosted end-points contain secrets."""
    return urlsplit(url).netloc.rpartition("@")[2]
