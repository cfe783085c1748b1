"""A development chain in this process: py-evm blocks, and the index that JSON-RPC needs.

Owns state and block making; knows nothing of HTTP. Every block is a function of the journal (genesis, then time
and transaction of each block), so a chain restarted from it has the same hashes. Not a network: no peers, no
consensus, one block per transaction.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from eth.chains.base import MiningChain
from eth.consensus import ConsensusApplier, NoProofConsensus
from eth.db.atomic import AtomicDB
from eth.vm.forks import CancunVM
from eth.vm.spoof import SpoofTransaction
from eth_keys.exceptions import BadSignature
from eth_utils.address import to_canonical_address
from eth_utils.exceptions import ValidationError
from rlp.exceptions import RLPException  # type: ignore[import-untyped]

from ledger.chain_journal import Genesis, Journal
from ledger.chain_json import Json, block_json, receipt_json
from ledger.recursion import restore_recursion_limit

restore_recursion_limit()

CHAIN_ID = 31337
GAS_LIMIT = 30_000_000
BALANCE = 10**24
"""Wei each prefunded account starts with."""
TOO_DEEP = "contracts call each other too deeply for this chain"
"""py-evm runs each call on Python's own stack, which holds about a hundred; the protocol allows 1,024."""
NO_COINBASE = bytes(20)
NO_MIX = bytes(32)
EMPTY_TRIE = bytes.fromhex("56e81f171bcc55a6ff8345e692c0f86e5b48e01b996cadc001622fb5e363b421")


class Refused(Exception):
    """The chain does not accept a transaction; the sender's fault."""


class Reverted(Exception):
    """A call that the contract reverted; `data` is the revert data."""

    def __init__(self, data: bytes) -> None:
        super().__init__("execution reverted")
        self.data = data


class DevChain:
    """A chain in this process. `clock` gives the time in seconds; a block's time is max(parent + 1, clock)."""

    def __init__(self, genesis: Genesis, *, clock: Callable[[], float], journal: Path | None = None) -> None:
        self._clock = clock
        self._journal = Journal(journal, genesis) if journal else None
        start = self._journal.genesis if self._journal else genesis
        self._chain = _new_chain(start)
        self._blocks = [block_json(self._chain.get_canonical_head(), None)]
        self._numbers = {self._blocks[0]["hash"]: 0}
        self._receipts: dict[str, Json] = {}
        self._logs: list[Json] = []
        self._log_blocks: list[int] = []
        for timestamp, raw in self._journal.blocks if self._journal else ():
            self._make_block(timestamp, bytes.fromhex(raw) if raw else None)

    @property
    def head(self) -> Json:
        """The newest block."""
        return self._blocks[-1]

    @property
    def head_timestamp(self) -> int:
        """Time of the newest block, in chain seconds."""
        return int(self._chain.get_canonical_head().timestamp)

    def close(self) -> None:
        """Close the journal."""
        if self._journal:
            self._journal.close()

    def block(self, number: int) -> Json | None:
        """The block with this number."""
        return self._blocks[number] if 0 <= number < len(self._blocks) else None

    def block_by_hash(self, digest: str) -> Json | None:
        """The block with this hash."""
        number = self._numbers.get(digest)
        return None if number is None else self._blocks[number]

    def receipt(self, digest: str) -> Json | None:
        """Receipt of a mined transaction."""
        return self._receipts.get(digest)

    def receipts(self) -> Sequence[Json]:
        """Receipts of all transactions, oldest first."""
        return tuple(self._receipts.values())

    def mine(self) -> None:
        """Add an empty block."""
        self._append(None)

    def send(self, raw: bytes) -> str:
        """Mine a signed transaction in a block of its own. Returns its hash. Raises Refused."""
        transaction = self._decode(raw)
        digest: str = "0x" + transaction.hash.hex()
        if digest in self._receipts:
            raise Refused("already known")
        self._check(transaction)
        self._append(raw)
        return digest

    def call(self, *, sender: str, to: str | None, data: bytes, value: int = 0) -> tuple[bytes, int]:
        """Run a call as if in the next block. Returns its output and the gas it needs.

        Raises Reverted, Refused.
        """
        # The caller pays nothing, and the block's time comes from our clock, not from py-evm.
        header = self._chain.header.copy(timestamp=self._next_timestamp(), base_fee_per_gas=0)
        vm = self._chain.get_vm(header)
        target = to_canonical_address(to) if to else b""
        unsigned = vm.get_transaction_builder().create_unsigned_transaction(
            nonce=self.nonce(sender), gas_price=0, gas=GAS_LIMIT, to=target, value=value, data=data
        )
        spoofed: Any = SpoofTransaction(unsigned, from_=to_canonical_address(sender))
        try:
            computation = vm.state.costless_execute_transaction(spoofed)
        except ValidationError as error:
            raise Refused(f"invalid call: {error}") from error
        except RecursionError as error:
            raise Refused(TOO_DEEP) from error
        if computation.is_error:
            raise Reverted(computation.output)
        return computation.output, GAS_LIMIT - computation.get_gas_remaining()

    def code(self, address: str) -> bytes:
        """Code of a contract at the newest block."""
        return bytes(self._state.get_code(to_canonical_address(address)))

    def balance(self, address: str) -> int:
        """Wei an account holds."""
        return int(self._state.get_balance(to_canonical_address(address)))

    def nonce(self, address: str) -> int:
        """Number of transactions an account has sent."""
        return int(self._state.get_nonce(to_canonical_address(address)))

    def logs(self, first: int, last: int) -> Sequence[Json]:
        """Logs of blocks first..last, in order."""
        return self._logs[bisect.bisect_left(self._log_blocks, first) : bisect.bisect_right(self._log_blocks, last)]

    @property
    def _state(self) -> Any:
        return self._chain.get_vm().state

    def _decode(self, raw: bytes) -> Any:
        try:
            transaction = self._chain.get_vm().get_transaction_builder().decode(raw)
            transaction.validate()
            transaction.check_signature_validity()
        except (RLPException, ValidationError, BadSignature, ValueError, TypeError, IndexError) as error:
            raise Refused(f"invalid transaction: {error}") from error
        return transaction

    def _check(self, transaction: Any) -> None:
        if transaction.chain_id != CHAIN_ID:
            raise Refused("invalid chain id")
        expected = self._state.get_nonce(transaction.sender)
        if transaction.nonce != expected:
            raise Refused(f"nonce too {'low' if transaction.nonce < expected else 'high'}: expected {expected}")
        if transaction.gas > GAS_LIMIT:
            raise Refused("exceeds block gas limit")
        if transaction.gas < transaction.intrinsic_gas:
            raise Refused("intrinsic gas too low")
        if transaction.max_fee_per_gas < self._chain.header.base_fee_per_gas:
            raise Refused("max fee per gas less than block base fee")
        if (
            self._state.get_balance(transaction.sender)
            < transaction.gas * transaction.max_fee_per_gas + transaction.value
        ):
            raise Refused("insufficient funds for gas")

    def _append(self, raw: bytes | None) -> None:
        timestamp = self._next_timestamp()
        if self._journal:
            self._journal.append(timestamp, raw)
        try:
            self._make_block(timestamp, raw)
        except RecursionError as error:
            if self._journal:
                self._journal.take_back()
            raise Refused(TOO_DEEP) from error

    def _next_timestamp(self) -> int:
        return max(self.head_timestamp + 1, int(self._clock()))

    def _make_block(self, timestamp: int, raw: bytes | None) -> None:
        self._chain.set_header_timestamp(timestamp)
        done: tuple[Any, Any, Any] | None = None
        if raw is not None:
            transaction = self._decode(raw)
            _, receipt, computation = self._chain.apply_transaction(transaction)
            done = (transaction, receipt, computation)
        # A fixed mix hash, so that a replay gives the same block hash.
        block = self._chain.mine_block(coinbase=NO_COINBASE, mix_hash=NO_MIX)
        made = block_json(block.header, done[0] if done else None)
        self._blocks.append(made)
        self._numbers[made["hash"]] = len(self._blocks) - 1
        if done:
            self._index(made, *done)

    def _index(self, block: Json, transaction: Any, receipt: Any, computation: Any) -> None:
        made = receipt_json(block, transaction, receipt, computation)
        self._logs.extend(made["logs"])
        self._log_blocks.extend([int(block["number"], 16)] * len(made["logs"]))
        self._receipts[made["transactionHash"]] = made


def _new_chain(genesis: Genesis) -> Any:
    forks = ConsensusApplier(NoProofConsensus).amend_vm_configuration(((0, CancunVM),))

    class FixedGasLimit(MiningChain):  # type: ignore[misc]
        chain_id = CHAIN_ID
        vm_configuration = forks

        def create_header_from_parent(self, parent_header: Any, **fields: Any) -> Any:
            return super().create_header_from_parent(parent_header, **{**fields, "gas_limit": parent_header.gas_limit})

    header: Any = {
        "coinbase": NO_COINBASE,
        "difficulty": 0,
        "extra_data": b"",
        "gas_limit": GAS_LIMIT,
        "mix_hash": NO_MIX,
        "nonce": bytes(8),
        "receipt_root": EMPTY_TRIE,
        "transaction_root": EMPTY_TRIE,
        "timestamp": genesis.timestamp,
    }
    account: Any = {"balance": BALANCE, "nonce": 0, "code": b"", "storage": {}}
    state: Any = {to_canonical_address(address): account for address in genesis.funded}
    return FixedGasLimit.from_genesis(AtomicDB(), header, state)
