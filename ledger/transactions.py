"""Transactions of one key: estimated, priced and signed here, but not sent."""

from __future__ import annotations

from eth_account import Account

from ledger.abi import revert_reason
from ledger.answers import place, quantity
from ledger.errors import LedgerError, LedgerRejected, LedgerUnavailable, LowBalance
from ledger.fees import read_fees
from ledger.journal import Pending
from ledger.json_rpc import RpcError
from ledger.recursion import restore_recursion_limit
from ledger.rpc import Caller

restore_recursion_limit()

GAS_MARGIN = (5, 4)
"""Factor on the gas estimate, which falls short when state changes between estimate and inclusion."""
REVERT_CODE = 3


class TransactionSigner:
    """Builds and signs an account's transactions. `max_fee` caps the gas price (wei per gas; 0: no cap)."""

    def __init__(self, rpc: Caller, key: bytes, *, chain_id: int, max_fee: int) -> None:
        self._rpc = rpc
        self._account = Account.from_key(key)
        self._chain_id = chain_id
        self._max_fee = max_fee

    @property
    def address(self) -> str:
        """The account's address."""
        return str(self._account.address)

    async def build(self, to: str | None, data: str, value: int, *, extra_gas: int) -> Pending:
        """A call with `value` wei (a deployment if `to` is None), signed and not sent. Raises LedgerRejected,
        LowBalance, LedgerUnavailable."""
        try:
            estimate = place(await self._rpc.call("eth_estimateGas", self.call(to, data, value)))
        except RpcError as error:
            raise await self._judge(error, value) from error
        gas = estimate * GAS_MARGIN[0] // GAS_MARGIN[1] * extra_gas
        fees = await read_fees(self._rpc, cap=self._max_fee)
        await self._check_balance(gas * fees.maximum + value)
        nonce = place(await self._rpc.call("eth_getTransactionCount", self.address, "latest"))
        return self.sign(Pending(nonce, to, data, gas, fees.priority, fees.maximum, (), (), value))

    def call(self, to: str | None, data: str, value: int) -> dict[str, str]:
        """The same call in the form that `eth_call` takes."""
        return {
            "from": self.address,
            "data": data,
            **({"to": to} if to else {}),
            **({"value": hex(value)} if value else {}),
        }

    async def _check_balance(self, needed: int) -> None:
        balance = await self.balance()
        if balance < needed:
            raise LowBalance(self.address, balance, needed)

    async def balance(self) -> int:
        """The account's balance, in wei."""
        return quantity(await self._rpc.call("eth_getBalance", self.address, "latest"))

    def sign(self, pending: Pending) -> Pending:
        """A copy with one more signed form, at the fees it names."""
        transaction = {
            "type": 2,
            "chainId": self._chain_id,
            "nonce": pending.nonce,
            "gas": pending.gas,
            "maxFeePerGas": pending.max_fee,
            "maxPriorityFeePerGas": pending.priority_fee,
            "data": pending.data,
            "value": pending.value,
            **({"to": pending.to} if pending.to else {}),
        }
        signed = self._account.sign_transaction(transaction)
        return pending.with_attempt(bytes(signed.raw_transaction).hex(), bytes(signed.hash).hex())

    async def _judge(self, error: RpcError, value: int) -> LedgerError:
        reason = revert_reason(error.data)
        if reason is not None:
            return LedgerRejected(reason)
        text = error.message.lower()
        if "insufficient funds" in text or "enough balance" in text:  # wording of nodes, and of our devnet
            balance = await self.balance()
            return LowBalance(self.address, balance, max(value, balance + 1))
        if error.code == REVERT_CODE or "revert" in text:
            return LedgerRejected(error.message)
        return LedgerUnavailable(f"the RPC end-point refused to estimate gas: {error.message}")
