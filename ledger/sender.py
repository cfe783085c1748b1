"""Transactions of one key: queued, with nonces managed, and safe across restarts.

One at a time: the next is made when the one before is deep enough. The signed bytes are on disk before they are sent,
so after a kill the same transaction goes out again, never a second one. A call requested again while it is pending is
the pending one. A revert is permanent and raised at once; network failures are retried.

Processes that share a folder take turns. Processes elsewhere with the same key compete for nonces, and the loser signs
again. A payment is signed again only when a second end-point confirms the loss, since an end-point that hides receipts
could have it made again and again.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import structlog

from ledger.abi import revert_reason, selector
from ledger.answers import Receipt, is_success, parse_receipt, place
from ledger.calls import PAYABLE
from ledger.disk import make_folder
from ledger.errors import LedgerError, LedgerRejected, LedgerUnavailable, LowBalance
from ledger.fees import Fees, raised_fees
from ledger.journal import Pending, TransactionJournal
from ledger.json_rpc import RpcError
from ledger.policy import DEFAULT_POLICY, ChainPolicy
from ledger.rpc import PinnedCaller, Request
from ledger.transactions import TransactionSigner
from ledger.wallet import address_of

log = structlog.get_logger(__name__)

INCLUSION_SECONDS = 90.0
DEPTH_SECONDS = 900.0
"""How long an included transaction may take to become deep enough."""
BUMP_SECONDS = 15.0
REPLACED_SECONDS = 5.0
"""How long a nonce must be seen used without a receipt. An end-point's index may trail its state."""
REPLACED_LOOKS = 3
FIRST_PAUSE = 0.02
LONGEST_PAUSE = 1.0
TRIES = 3
HOPELESS = ("intrinsic gas too low", "exceeds block gas limit", "invalid chain id", "type not supported", "initcode")
"""Errors that no later block would resolve either."""


class _Again(Exception):
    """The transaction has had no effect and can have none any more; another must be made."""


class Sender:
    """Sends calls signed by the operator key. `journal` None keeps nothing on disk (tests, one-shot commands)."""

    def __init__(
        self,
        rpc: PinnedCaller,
        key: bytes,
        *,
        chain_id: int,
        journal: Path | None,
        policy: ChainPolicy = DEFAULT_POLICY,
        inclusion_seconds: float = INCLUSION_SECONDS,
        bump_seconds: float = BUMP_SECONDS,
        replaced_seconds: float = REPLACED_SECONDS,
    ) -> None:
        self._rpc = rpc
        self._signer = TransactionSigner(rpc, key, chain_id=chain_id, max_fee=policy.max_fee)
        self._journal = TransactionJournal(journal)
        self._policy = policy
        self._inclusion_seconds = inclusion_seconds
        self._bump_seconds = bump_seconds
        self._replaced_seconds = replaced_seconds
        self._recovered: list[tuple[Pending, Receipt]] = []
        self._lock = asyncio.Lock()

    @property
    def address(self) -> str:
        """The operator's address."""
        return self._signer.address

    async def settle(self) -> None:
        """Finish a transaction that an earlier process left pending. The caller reads the outcome from the chain.

        The next `send` of the same call gets its receipt instead of sending it again.
        """
        async with self._lock, self._journal.turn():
            with _transient():
                await self._settle()

    async def send(self, to: str | None, data: str, value: int = 0) -> Receipt:
        """Send a call with `value` wei (a deployment if `to` is None), and wait until its block is deep enough.

        A call left pending before a restart or a timeout is finished, never sent twice. Raises LedgerRejected (revert,
        with the contract's reason), LowBalance, or LedgerUnavailable when it was not included in time: it stays in the
        journal, and the next call finishes it.
        """
        async with self._lock, self._journal.turn():
            with _transient():
                held = self._journal.pending
                if held is not None and held.is_for(to, data, value):
                    return await self._finish(to, data, value)
                await self._settle()
                earlier = self._take_recovered(to, data, value)
                return earlier if earlier is not None else await self._finish(to, data, value)

    async def deploy(self, data: str) -> Receipt:
        """Deploy a contract and wait as `send` does. A contract deployed from this journal
        before is not deployed again."""
        async with self._lock, self._journal.turn():
            with _transient():
                done = self._journal.deployed(data)
                for digest in ["0x" + each for each in done.hashes] if done else ():
                    receipt = parse_receipt(await self._rpc.call("eth_getTransactionReceipt", digest), digest)
                    if receipt is not None and is_success(receipt):
                        return receipt
        return await self.send(None, data)

    async def _finish(self, to: str | None, data: str, value: int) -> Receipt:
        extra_gas = 1
        for _ in range(TRIES):
            if self._journal.pending is None:
                self._journal.keep(await self._signer.build(to, data, value, extra_gas=extra_gas))
            try:
                return await self._see_through()
            except _Again as error:
                extra_gas *= 2
                log.warning("transaction.replaced", operator=self.address, cause=str(error))
        raise LedgerError(f"another process sends with the key of {self.address}: its nonces keep changing")

    async def _settle(self) -> None:
        pending = self._journal.pending
        if pending is None:
            return
        log.info("transaction.resumed", nonce=pending.nonce, operator=self.address)
        try:
            self._recovered.append((pending, await self._see_through()))
        except (_Again, LedgerRejected) as error:
            log.info("transaction.dropped", reason=str(error), operator=self.address)

    def _take_recovered(self, to: str | None, data: str, value: int) -> Receipt | None:
        for index, (pending, receipt) in enumerate(self._recovered):
            if pending.is_for(to, data, value):
                del self._recovered[index]
                return receipt
        return None

    async def _see_through(self) -> Receipt:
        loop = asyncio.get_running_loop()
        started = sent = loop.time()
        pause, looks, included = FIRST_PAUSE, _Looks(self._replaced_seconds), False
        await self._broadcast()
        while True:
            receipt, depth, is_moved = await self._look()
            if receipt is not None and depth >= self._policy.confirmations:
                return await self._done(receipt)
            now = loop.time()
            if looks.are_enough(now, is_lost=is_moved and receipt is None):
                hidden = await self._find_hidden() if _is_payment(self._must_pend()) else None
                if hidden is not None:
                    return await self._done(hidden)
                self._journal.keep(None)
                raise _Again("another transaction of the same key has its nonce")
            if now - started > (DEPTH_SECONDS if receipt is not None else self._inclusion_seconds):
                raise LedgerUnavailable("a transaction is not in a block yet; it will be sent again")
            if included and receipt is None:  # a re-org removed its block, and pools may have dropped it
                await self._broadcast()
            elif receipt is None and not is_moved and now - sent > self._bump_seconds:
                self._bump()
                await self._broadcast()
                sent = now
            included = receipt is not None
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)

    async def _look(self) -> tuple[Receipt | None, int, bool]:
        """The receipt of whichever form was included, the depth of its block, and whether the nonce is used.

        All three come from one end-point, the nonce first: if the nonce is used there, a receipt of ours is
        visible there too. The nonce is read at the depth that receipts need, so a nonce that a re-org can still
        free does not count as used.
        """
        asked = await self._questions()
        try:
            return self._read_look(await self._rpc.together(*asked))
        except RpcError as error:
            # An index or a state that has not caught up says nothing about the transaction.
            nonce = self._must_pend().nonce
            log.info("transaction.unseen", cause=error.message, nonce=nonce, operator=self.address)
            return None, 0, False

    async def _questions(self) -> list[Request]:
        """Requests for the nonce, the receipt of each form sent, and the newest block."""
        tag = "latest"
        if self._policy.confirmations > 1:
            head = place(await self._rpc.call("eth_blockNumber"))
            tag = hex(max(0, head - self._policy.confirmations + 1))
        receipts: list[Request] = [("eth_getTransactionReceipt", each) for each in self._hashes()]
        return [("eth_getTransactionCount", self.address, tag), *receipts, ("eth_blockNumber",)]

    def _hashes(self) -> list[str]:
        return ["0x" + each for each in reversed(self._must_pend().hashes)]

    def _read_look(self, said: Sequence[object]) -> tuple[Receipt | None, int, bool]:
        count, *answers, newest = said
        used, top = place(count), place(newest)
        receipts = [parse_receipt(each, digest) for each, digest in zip(answers, self._hashes(), strict=True)]
        receipt = next((each for each in receipts if each is not None), None)
        if receipt is None:
            return None, 0, used > self._must_pend().nonce
        return receipt, top - place(receipt["blockNumber"]) + 1, True

    async def _find_hidden(self) -> Receipt | None:
        """The receipt of a payment that one end-point does not show. None when at least two end-points answer, and all
        that do say that another transaction used its nonce. Raises LedgerUnavailable otherwise: it may have been paid.
        """
        looks = [self._read_look(said) for said in await self._rpc.everywhere(*await self._questions())]
        for receipt, depth, _ in looks:
            if receipt is not None and depth >= self._policy.confirmations:
                return receipt
        if len(looks) > 1 and all(receipt is None and is_moved for receipt, _, is_moved in looks):
            return None
        raise LedgerUnavailable(
            f"the nonce {self._must_pend().nonce} of {self.address} is used, and no RPC end-point shows whether by the "
            "payment that was sent: it is not paid again. Name another --rpc, or look it up: "
            + ", ".join(self._hashes())
        )

    async def _done(self, receipt: Receipt) -> Receipt:
        pending = self._must_pend()
        is_good = is_success(receipt)
        if is_good and pending.to is None:
            self._journal.keep_deployed()
        else:
            self._journal.keep(None)
        if is_good:
            return receipt
        reason = await self._why(pending, receipt)
        if reason is None and place(receipt["gasUsed"]) >= pending.gas:
            raise _Again("the estimate of its gas was too low")
        raise LedgerRejected(reason or "reverted", was_paid=True)

    async def _broadcast(self) -> None:
        pending = self._must_pend()
        try:
            await self._rpc.call("eth_sendRawTransaction", "0x" + pending.attempts[-1])
        except RpcError as error:
            text = error.message.lower()
            is_first = len(pending.attempts) == 1
            if "insufficient funds" in text and is_first:
                balance = await self._signer.balance()
                self._journal.keep(None)
                raise LowBalance(self.address, balance, pending.gas * pending.max_fee + pending.value) from error
            if any(words in text for words in HOPELESS) and is_first:
                self._journal.keep(None)
                raise LedgerRejected(error.message) from error
            # Known, nonce used, or fee too low: the receipt, the nonce or the next bump decides. The same goes for any
            # other error: the journal keeps the transaction, and the timeout reports it.
            log.info("transaction.refused", reason=error.message, nonce=pending.nonce, operator=self.address)

    def _bump(self) -> None:
        """Offer higher fees if the cap allows. Otherwise the same form is sent again, in case it was dropped."""
        pending = self._must_pend()
        fees = raised_fees(Fees(pending.priority_fee, pending.max_fee), cap=self._policy.max_fee)
        if fees is not None:
            better = replace(pending, priority_fee=fees.priority, max_fee=fees.maximum)
            self._journal.keep(self._signer.sign(better))

    async def _why(self, pending: Pending, receipt: Receipt) -> str | None:
        """The contract's revert reason; None when the same call succeeds if simulated."""
        call = self._signer.call(pending.to, pending.data, pending.value)
        try:
            await self._rpc.call("eth_call", call, receipt["blockNumber"])
        except RpcError as error:
            return revert_reason(error.data) or error.message
        return None

    def _must_pend(self) -> Pending:
        if self._journal.pending is None:
            raise ValueError("no transaction is pending")
        return self._journal.pending


def _is_payment(pending: Pending) -> bool:
    """Whether it transfers coins or tokens, so that the contract would not refuse a repeat."""
    return pending.value > 0 or pending.data[:10] in map(selector, PAYABLE)


@contextlib.contextmanager
def _transient() -> Iterator[None]:
    """A request that an end-point refuses decides nothing: the pending transaction stays in the journal."""
    try:
        yield
    except RpcError as error:
        raise LedgerUnavailable(f"the RPC end-point refused a request: {error.message}") from error


class _Looks:
    """Whether a nonce was seen used, without a receipt, often and long enough to believe it."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._count, self._since = 0, 0.0

    def are_enough(self, now: float, *, is_lost: bool) -> bool:
        """Count one observation. Returns whether there are enough."""
        self._since = now if self._count == 0 else self._since
        self._count = self._count + 1 if is_lost else 0
        return self._count >= REPLACED_LOOKS and now - self._since >= self._seconds


def open_sender(rpc: PinnedCaller, key: bytes, *, chain_id: int, state_dir: Path | None, policy: ChainPolicy) -> Sender:
    """A sender whose journal, if there is a folder for it, is in `state_dir`."""
    journal = None
    if state_dir is not None:
        make_folder(state_dir)
        # Nonces belong to the chain, whatever the contract: one journal per key and chain.
        journal = state_dir / f"transaction-{chain_id}-{address_of(key)[2:].lower()}.json"
    return Sender(rpc, key, chain_id=chain_id, journal=journal, policy=policy)
