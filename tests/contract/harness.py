"""The compiled registry on an in-process EVM, called as its users would, and builders for the calls' arguments."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import replace
from functools import cache
from typing import Any

from eth_account import Account
from nacl.signing import SigningKey

from ledger import abi
from ledger.accounts import devnet_accounts
from ledger.calls import (
    PAYABLE,
    arguments_of,
    registration_arguments,
    rotation_arguments,
    strike_arguments,
    tally_arguments,
)
from ledger.chain_journal import Genesis
from ledger.errors import LedgerRejected
from ledger.events import TOPICS, EventLog, operator_tuples, parse_terms, term_tuple
from ledger.evm import BALANCE, CHAIN_ID, DevChain, Reverted
from ledger.records import (
    ZERO_DIGEST,
    Attestation,
    Block,
    Operator,
    Proposal,
    RegistrationRequest,
    RotationRequest,
    RunTerms,
    Strike,
)
from ledger.signing import lift_typed_data, rotation_message, rotation_typed_data, strike_typed_data
from ledger.wallet import (
    NO_ADDRESS,
    Domain,
    address_of,
    node_from_public_key,
    registration_message,
    sign_registration,
    sign_typed_data,
    tally_typed_data,
)

START = 1_700_000_000
KEYS = devnet_accounts(12, "contract-tests")
ADDRESSES = tuple(address_of(key) for key in KEYS)
NODE_KEYS = tuple(SigningKey(hashlib.sha256(bytes([index])).digest()) for index in range(8))
NODES = tuple(node_from_public_key(bytes(key.verify_key)) for key in NODE_KEYS)
TRAINER, STRANGER, OWNER = KEYS[0], KEYS[8], KEYS[9]
VALIDATORS = KEYS[1:4]
WALLET = KEYS[7]


def digest(text: object) -> str:
    """A digest to use as an id."""
    return hashlib.sha256(str(text).encode()).hexdigest()


RUN = digest("run")


def make_operator(index: int) -> Operator:
    return Operator(NODES[index], ADDRESSES[index], ADDRESSES[7])


def make_terms(**changes: Any) -> RunTerms:
    terms = RunTerms(
        run=RUN,
        owner=address_of(OWNER),
        validators=tuple(make_operator(index) for index in (1, 2, 3)),
        trainers=(make_operator(0),),
        quorum=2,
        epoch_checkpoints=2,
        epoch_max_seconds=600,
        round_seconds=10,
        created_block=2,
    )
    return replace(terms, **changes)


def make_proposal(**changes: Any) -> Proposal:
    proposal = Proposal(
        run=RUN,
        epoch=0,
        round=0,
        closing_block=4,
        parent_root=ZERO_DIGEST,
        root=digest("root 0"),
        total=100,
        blob=digest("blob 0"),
    )
    return replace(proposal, **changes)


def make_registration(
    domain: Domain, *, node: int = 5, nonce: int = 1, wallet: bytes | None = WALLET, claimed: str | None = None
) -> RegistrationRequest:
    return sign_registration(
        domain,
        run=RUN,
        node=NODES[node],
        nonce=nonce,
        sign_node=lambda message: NODE_KEYS[node].sign(message).signature,
        wallet_key=wallet,
        claimed=claimed,
    )


def make_rotation(
    domain: Domain, *, old: int = 5, new: int = 6, nonce: int = 2, wallet: bytes | None = WALLET
) -> RotationRequest:
    address = address_of(wallet) if wallet else None
    fields: dict[str, Any] = {
        "run": RUN,
        "old_node": NODES[old],
        "new_node": NODES[new],
        "wallet": address,
        "nonce": nonce,
    }
    message = rotation_message(domain, **fields)
    by_old, by_new = (NODE_KEYS[place].sign(message).signature.hex() for place in (old, new))
    by_wallet = sign_typed_data(rotation_typed_data(domain, **fields), wallet) if wallet else ""
    return RotationRequest(
        **fields,
        wallet_signature=by_wallet,
        old_node_signature="" if wallet else by_old,
        new_node_signature=by_new,
    )


def make_strike(**changes: Any) -> Strike:
    strike = Strike(run=RUN, node=NODES[5], wallet=ADDRESSES[7], number=0, reason=7, evidence=digest("evidence"))
    return replace(strike, **changes)


def attest_lift(domain: Domain, number: int, key: bytes) -> Attestation:
    typed = lift_typed_data(domain, run=RUN, node=NODES[5], number=number)
    return Attestation(address_of(key), sign_typed_data(typed, key))


def attest(domain: Domain, proposal: Proposal, key: bytes) -> Attestation:
    return Attestation(address_of(key), sign_typed_data(tally_typed_data(domain, proposal), key))


class Clock:
    """A clock set by the test; 0 makes every block one second later than its parent."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Registry:
    """A deployed registry. Calls raise LedgerRejected with the contract's reason."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.chain = DevChain(Genesis(START, ADDRESSES), clock=self.clock)
        receipt = self.transact(OWNER, None, abi.built()["bytecode"])
        self.address: str = receipt["contractAddress"]
        self.domain = Domain(CHAIN_ID, self.address)
        self.is_sure = False  # skip the trial call, because the call will not revert

    @property
    def next_block(self) -> Block:
        """The block that will contain the next transaction, without its hash."""
        return Block(int(self.chain.head["number"], 16) + 1, "", self.chain.head_timestamp + 1)

    def skip(self, seconds: int) -> None:
        """Mine one empty block `seconds` after the newest."""
        self.clock.now = self.chain.head_timestamp + seconds
        self.chain.mine()

    def transact(self, key: bytes, to: str | None, data: str, *, value: int = 0) -> dict[str, Any]:
        transaction = {
            "type": 2,
            "chainId": CHAIN_ID,
            "nonce": self.chain.nonce(address_of(key)),
            "gas": 8_000_000,
            "maxFeePerGas": 10**10,
            "maxPriorityFeePerGas": 1,
            "data": data,
            "value": value,
            **({"to": to} if to else {}),
        }
        raw = bytes(Account.sign_transaction(transaction, key).raw_transaction)
        receipt = self.chain.receipt(self.chain.send(raw))
        assert receipt is not None
        return receipt

    def call(self, key: bytes, name: str, *arguments: object, value: int = 0) -> dict[str, Any]:
        """Receipt of a transaction. A call that would revert is not sent."""
        data = abi.encode_call(name, *arguments)
        if not self.is_sure:
            self._must_succeed(key, data, value)
        receipt = self.transact(key, self.address, data, value=value)
        if receipt["status"] != "0x1":
            raise LedgerRejected("reverted in its block")
        return receipt

    def _must_succeed(self, key: bytes, data: str, value: int) -> None:
        try:
            self.chain.call(sender=address_of(key), to=self.address, data=abi.unhex(data), value=value)
        except Reverted as error:
            raise LedgerRejected(abi.revert_reason(error.data) or "no reason") from error

    def do(self, key: bytes, name: str, *arguments: object, run: str = RUN, value: int | None = None) -> dict[str, Any]:
        """Make a call about a run, with parameters as `BaseLedger` gives them. Payable calls carry their coins."""
        if value is None:
            value = int(str(arguments[-1])) if name in PAYABLE else 0
        return self.call(key, name, bytes.fromhex(run), *arguments_of(name, arguments), value=value)

    def strike(self, strike: Strike, keys: Sequence[bytes] = VALIDATORS[:2]) -> dict[str, Any]:
        """Strike with the attestations of some validators."""
        typed = strike_typed_data(self.domain, strike)
        return self.put_strike(strike, [Attestation(address_of(key), sign_typed_data(typed, key)) for key in keys])

    def put_strike(self, strike: Strike, attestations: Sequence[Attestation]) -> dict[str, Any]:
        """Strike with the attestations given."""
        signatures = [bytes.fromhex(each.signature) for each in attestations]
        return self.call(STRANGER, "strike", *strike_arguments(strike), signatures)

    def lift(self, number: int = 0, keys: Sequence[bytes] = VALIDATORS[:2]) -> dict[str, Any]:
        """Lift a strike of node 5 with the attestations of some validators."""
        attestations = [attest_lift(self.domain, number, key) for key in keys]
        return self.do(STRANGER, "lift", NODES[5], number, attestations)

    def rotate(self, request: RotationRequest) -> dict[str, Any]:
        return self.call(STRANGER, "rotate", *rotation_arguments(request))

    def coins(self, address: str) -> int:
        """Change of an account's balance in wei since the start, not counting gas."""
        spent = sum(
            int(receipt["gasUsed"], 16) * int(receipt["effectiveGasPrice"], 16)
            for receipt in self.chain.receipts()
            if receipt["from"] == address
        )
        return self.chain.balance(address) + spent - (BALANCE if address in ADDRESSES else 0)

    def view(self, name: str, *arguments: object) -> tuple[Any, ...]:
        data = abi.unhex(abi.encode_call(name, *arguments))
        output, _ = self.chain.call(sender=NO_ADDRESS, to=self.address, data=data)
        return abi.decode_result(name, "0x" + output.hex())

    def create_run(self, terms: RunTerms | None = None) -> dict[str, Any]:
        terms = terms or make_terms()
        operators = operator_tuples(terms.validators), operator_tuples(terms.trainers)
        return self.call(OWNER, "create_run", bytes.fromhex(terms.run), term_tuple(terms), *operators)

    def terms(self, run: str = RUN) -> RunTerms:
        key = bytes.fromhex(run)
        return parse_terms(run, self.view("runs", key)[0], self.view("operators", key))

    def register(self, request: RegistrationRequest) -> dict[str, Any]:
        return self.call(STRANGER, "register", *registration_arguments(request))

    def commit(
        self,
        step: int,
        *,
        key: bytes = TRAINER,
        run: str = RUN,
        term: int = 1,
        manifest: str | None = None,
        parent: str | None = None,
        final: bool = False,
    ) -> dict[str, Any]:
        """Commit checkpoint `step` of the chain of manifests digest(0), digest(1), .. unless stated otherwise."""
        made = bytes.fromhex(manifest if manifest is not None else digest(step))
        before = bytes.fromhex(parent if parent is not None else digest(step - 1) if step else ZERO_DIGEST)
        return self.call(key, "commit_checkpoint", bytes.fromhex(run), term, step, made, before, final)

    def finalise(self, proposal: Proposal, attestations: Sequence[Attestation] | None = None) -> dict[str, Any]:
        """Finalise with the given attestations, by default those of the first two validators."""
        if attestations is None:
            attestations = [attest(self.domain, proposal, key) for key in VALIDATORS[:2]]
        return self.call(
            STRANGER, "finalise", tally_arguments(proposal), [bytes.fromhex(each.signature) for each in attestations]
        )

    def events(self, run: str = RUN) -> EventLog:
        """The events that readers of the run see."""
        log = EventLog()
        newest = int(self.chain.head["number"], 16)
        read = self.chain.logs(0, newest)
        log.add([each for each in read if each["topics"][0] in TOPICS and each["topics"][1] == "0x" + run])
        return log


def message_of(domain: Domain, request: RegistrationRequest) -> bytes:
    """What the node signed."""
    return registration_message(
        domain,
        run=request.run,
        node=request.node,
        wallet=request.wallet,
        claimed=request.claimed,
        nonce=request.nonce,
    )


def make_registry(terms: RunTerms | None = None) -> Registry:
    """A new registry with a run. It is a copy of a prepared one, which is much cheaper."""
    return deepcopy(_made(terms or make_terms()))


@cache
def _made(terms: RunTerms) -> Registry:
    registry = Registry()
    registry.create_run(terms)
    return registry
