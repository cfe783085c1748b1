"""Transactions of one operator key: queued, nonce-safe, restart-safe.

One at a time: the next is made when the one before is in a block. The signed bytes are on disk before they are sent,
so that after a kill the same transaction goes out again, never a second one. A revert is permanent and is raised at
once; whatever the network does is retried. One process per key: two would fight over nonces.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import structlog
from eth_account import Account

from ledger.abi import revert_reason
from ledger.errors import LedgerError, LedgerRejected, LedgerUnavailable, LowBalance
from ledger.rpc import Caller, RpcError

log = structlog.get_logger(__name__)

INCLUSION_SECONDS = 90.0
BUMP_SECONDS = 15.0
FIRST_PAUSE = 0.02
LONGEST_PAUSE = 1.0
GAS_MARGIN = (5, 4)
"""Estimates fall short when state moves between estimate and inclusion."""
FEE_BUMP = (5, 4)
"""Nodes take a replacement from 10% more."""
REPLACED_TRIES = 3
REVERT_CODE = 3

Receipt = Mapping[str, Any]


class _Replaced(Exception):
    """Another transaction of the same key took the nonce."""


@dataclass(frozen=True, slots=True)
class Pending:
    """A transaction not yet known to be in a block: its fields and every signed form sent so far (hex)."""

    nonce: int
    to: str | None
    data: str
    gas: int
    priority_fee: int
    max_fee: int
    attempts: tuple[str, ...]
    hashes: tuple[str, ...]


class Sender:
    """Sends what the operator signs. `journal` None keeps nothing on disk (tests, one-shot commands)."""

    def __init__(
        self,
        rpc: Caller,
        key: bytes,
        *,
        chain_id: int,
        journal: Path | None,
        inclusion_seconds: float = INCLUSION_SECONDS,
        bump_seconds: float = BUMP_SECONDS,
    ) -> None:
        self._rpc = rpc
        self._account = Account.from_key(key)
        self._chain_id = chain_id
        self._journal = journal
        self._inclusion_seconds = inclusion_seconds
        self._bump_seconds = bump_seconds
        self._pending = _load(journal)
        self._lock = asyncio.Lock()

    @property
    def address(self) -> str:
        """The operator's address."""
        return str(self._account.address)

    async def settle(self) -> None:
        """See a transaction left over from before through; what became of it, the caller reads from the chain."""
        async with self._lock:
            await self._settle()

    async def send(self, to: str | None, data: str) -> Receipt:
        """Send a call (or with `to` None a deployment) and wait until it is in a block.

        Raises LedgerRejected (revert, with the contract's reason), LowBalance, or LedgerUnavailable when it was not
        included in time: it stays journalled and is seen through by the next call.
        """
        async with self._lock:
            await self._settle()
            for _ in range(REPLACED_TRIES):
                self._keep(await self._build(to, data))
                try:
                    return await self._see_through()
                except _Replaced:
                    log.warning("transaction.replaced", operator=self.address)
            raise LedgerError(f"another process sends with the key of {self.address}: its nonces keep changing")

    async def _settle(self) -> None:
        if self._pending is None:
            return
        log.info("transaction.resumed", nonce=self._pending.nonce, operator=self.address)
        try:
            await self._see_through()
        except (_Replaced, LedgerRejected) as error:
            log.info("transaction.dropped", reason=str(error), operator=self.address)

    async def _build(self, to: str | None, data: str) -> Pending:
        call = {"from": self.address, "data": data, **({"to": to} if to else {})}
        try:
            estimate = int(await self._rpc.call("eth_estimateGas", call), 16)
        except RpcError as error:
            raise self._judge(error) from error
        gas = estimate * GAS_MARGIN[0] // GAS_MARGIN[1]
        priority_fee, max_fee = await self._fees()
        await self._check_balance(gas * max_fee)
        nonce = int(await self._rpc.call("eth_getTransactionCount", self.address, "latest"), 16)
        return self._signed(Pending(nonce, to, data, gas, priority_fee, max_fee, (), ()))

    async def _fees(self) -> tuple[int, int]:
        """Priority and maximal fee, EIP-1559 only."""
        block = await self._rpc.call("eth_getBlockByNumber", "latest", False)
        base_fee = int(block["baseFeePerGas"], 16)
        try:
            priority_fee = int(await self._rpc.call("eth_maxPriorityFeePerGas"), 16)
        except RpcError:  # not every end-point has it
            priority_fee = max(1, int(await self._rpc.call("eth_gasPrice"), 16) - base_fee)
        return priority_fee, 2 * base_fee + priority_fee

    async def _check_balance(self, needed: int) -> None:
        balance = int(await self._rpc.call("eth_getBalance", self.address, "latest"), 16)
        if balance < needed:
            raise LowBalance(self.address, balance, needed)

    def _signed(self, pending: Pending) -> Pending:
        transaction = {
            "type": 2,
            "chainId": self._chain_id,
            "nonce": pending.nonce,
            "gas": pending.gas,
            "maxFeePerGas": pending.max_fee,
            "maxPriorityFeePerGas": pending.priority_fee,
            "data": pending.data,
            "value": 0,
            **({"to": pending.to} if pending.to else {}),
        }
        signed = self._account.sign_transaction(transaction)
        return replace(
            pending,
            attempts=(*pending.attempts, bytes(signed.raw_transaction).hex()),
            hashes=(*pending.hashes, bytes(signed.hash).hex()),
        )

    async def _see_through(self) -> Receipt:
        loop = asyncio.get_running_loop()
        started = sent = loop.time()
        pause = FIRST_PAUSE
        await self._broadcast()
        while True:
            receipt = await self._receipt()
            if receipt is not None:
                return await self._done(receipt)
            now = loop.time()
            if now - started > self._inclusion_seconds:
                raise LedgerUnavailable("a transaction is not in a block yet; it will be sent again")
            if now - sent > self._bump_seconds:
                self._bump()
                await self._broadcast()
                sent = now
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)

    async def _done(self, receipt: Receipt) -> Receipt:
        pending = self._must_pend()
        self._keep(None)
        if int(receipt["status"], 16) == 1:
            return receipt
        raise LedgerRejected(await self._why(pending, receipt))

    async def _receipt(self) -> Receipt | None:
        """Receipt of whichever form was included. Raises _Replaced when the nonce went to something else."""
        pending = self._must_pend()
        # Nonce first: if it has moved, a receipt that is ours is there already.
        moved = int(await self._rpc.call("eth_getTransactionCount", self.address, "latest"), 16) > pending.nonce
        for digest in reversed(pending.hashes):
            receipt: Receipt | None = await self._rpc.call("eth_getTransactionReceipt", "0x" + digest)
            if receipt is not None:
                return receipt
        if moved:
            self._keep(None)
            raise _Replaced("the nonce is used")
        return None

    async def _broadcast(self) -> None:
        pending = self._must_pend()
        try:
            await self._rpc.call("eth_sendRawTransaction", "0x" + pending.attempts[-1])
        except RpcError as error:
            text = error.message.lower()
            if "insufficient funds" in text:
                self._keep(None)
                balance = int(await self._rpc.call("eth_getBalance", self.address, "latest"), 16)
                raise LowBalance(self.address, balance, pending.gas * pending.max_fee) from error
            # Known, used or too cheap: the receipt, the nonce or the next bump decides. Anything else too: the
            # journal keeps the transaction, and time-out reports it.
            log.info("transaction.refused", reason=error.message, nonce=pending.nonce, operator=self.address)

    def _bump(self) -> None:
        pending = self._must_pend()
        priority_fee = pending.priority_fee * FEE_BUMP[0] // FEE_BUMP[1] + 1
        max_fee = pending.max_fee * FEE_BUMP[0] // FEE_BUMP[1] + 1
        self._keep(self._signed(replace(pending, priority_fee=priority_fee, max_fee=max_fee)))

    async def _why(self, pending: Pending, receipt: Receipt) -> str:
        call = {"from": self.address, "data": pending.data, **({"to": pending.to} if pending.to else {})}
        try:
            await self._rpc.call("eth_call", call, receipt["blockNumber"])
        except RpcError as error:
            return revert_reason(error.data) or error.message
        return "reverted"

    def _judge(self, error: RpcError) -> LedgerError:
        reason = revert_reason(error.data)
        if reason is not None:
            return LedgerRejected(reason)
        if error.code == REVERT_CODE or "revert" in error.message.lower():
            return LedgerRejected(error.message)
        return LedgerUnavailable(f"the RPC end-point refused to estimate gas: {error.message}")

    def _must_pend(self) -> Pending:
        if self._pending is None:
            raise ValueError("no transaction is pending")
        return self._pending

    def _keep(self, pending: Pending | None) -> None:
        """Remember the pending transaction, on disk before it is sent."""
        self._pending = pending
        if self._journal is None:
            return
        if pending is None:
            self._journal.unlink(missing_ok=True)
            return
        fields = {name: getattr(pending, name) for name in Pending.__dataclass_fields__}
        temporary = self._journal.with_suffix(".tmp")
        with temporary.open("w") as file:
            json.dump(fields, file)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(self._journal)


def _load(journal: Path | None) -> Pending | None:
    """The transaction left in the journal. Raises LedgerError when the file is not a journal."""
    if journal is None or not journal.exists():
        return None
    try:
        fields = json.loads(journal.read_text())
        return Pending(**{**fields, "attempts": tuple(fields["attempts"]), "hashes": tuple(fields["hashes"])})
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise LedgerError(f"{journal} is not a transaction journal: see what it holds, then remove it") from error
