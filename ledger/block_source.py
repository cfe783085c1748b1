"""Fetches blocks and a run's logs from an end-point. Logs are requested in ranges that the
end-point accepts. Caches nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ledger.answers import check_logs, parse_block
from ledger.errors import LedgerUnavailable
from ledger.events import TOPICS
from ledger.json_rpc import RpcError, TooMuch
from ledger.records import Block
from ledger.rpc import Caller

LOG_RANGE = 2000
"""Initial number of blocks per log request. Hosted end-points refuse more, and some of them refuse even this many."""
BATCH_REQUESTS = 8
"""Log requests after which the logs read are stored. The limit doubles where an end-point refuses some, or returns one
block at a time, so that re-reading the overlap still leaves as many requests for new blocks."""


class BlockSource:
    """The requests of one run's reader. `piece` is the number of blocks per log request."""

    def __init__(self, rpc: Caller, *, contract: str, run: str) -> None:
        self._rpc, self._contract, self._run = rpc, contract, run
        self.piece = LOG_RANGE

    async def newest_block(self) -> tuple[Block, str]:
        """The newest block, and its parent's hash. Raises LedgerUnavailable."""
        answer = await self._ask("latest")
        return parse_block(answer), _parent(answer)

    async def find_block(self, number: int) -> Block | None:
        """A block; None when it is not there. Raises LedgerUnavailable."""
        answer = await self._ask(hex(number))
        return None if answer is None else _of_number(number, answer)

    async def block(self, number: int) -> tuple[Block, str]:
        """A block that must exist, and its parent's hash. Raises LedgerUnavailable."""
        answer = await self._ask(hex(number))
        if answer is None:
            raise LedgerUnavailable("the RPC end-point left out a block")
        return _of_number(number, answer), _parent(answer)

    async def logs(self, first: int, last: int) -> list[Mapping[str, Any]] | None:
        """Logs of blocks first..last, in bounded ranges, halved when an end-point refuses them. None when that takes
        too many requests for one batch. Raises LedgerUnavailable."""
        logs: list[Mapping[str, Any]] = []
        for _ in range(2 * BATCH_REQUESTS):
            if first > last:
                return logs
            until = min(first + self.piece - 1, last)
            try:
                logs += await self._ask_logs(first, until)
            except LedgerUnavailable as error:
                if not isinstance(error.__cause__, RpcError | TooMuch) or until == first:
                    raise
                self.piece = max(1, (until - first + 1) // 2)
                continue
            first = until + 1
        return logs if first > last else None

    async def _ask(self, tag: str) -> Mapping[str, Any] | None:
        try:
            answer: Mapping[str, Any] | None = await self._rpc.call("eth_getBlockByNumber", tag, False)
        except RpcError as error:
            raise LedgerUnavailable(f"the RPC end-point refused to give block {tag}: {error.message}") from error
        return answer

    async def _ask_logs(self, first: int, last: int) -> list[Mapping[str, Any]]:
        query = {
            "address": self._contract,
            "fromBlock": hex(first),
            "toBlock": hex(last),
            "topics": [list(TOPICS), "0x" + self._run],
        }
        try:
            logs: list[Mapping[str, Any]] = await self._rpc.call("eth_getLogs", query)
        except RpcError as error:
            raise LedgerUnavailable(f"the RPC end-point refused to give logs: {error.message}") from error
        check_logs(logs, query)
        return logs


def _of_number(number: int, answer: object) -> Block:
    block = parse_block(answer)
    if block.number != number:
        raise LedgerUnavailable("the RPC end-point answered with another block")
    return block


def _parent(answer: Mapping[str, Any] | None) -> str:
    return str(answer.get("parentHash", ""))[2:] if answer else ""
