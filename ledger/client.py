"""The ledger of a run on an EVM chain: what nodes read, send and attest.

Owns the mapping between records and the registry contract. Knows nothing of steps' meaning, messages or the DHT.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self, TypedDict, Unpack

from eth_utils.crypto import keccak

from ledger import abi
from ledger.answers import deployed_at, quantity
from ledger.base import BaseLedger
from ledger.calls import (
    PAYABLE,
    arguments_of,
    encode_token_call,
    hex_bytes,
    registration_arguments,
    rotation_arguments,
    strike_arguments,
    tally_arguments,
)
from ledger.disk import make_folder
from ledger.errors import LedgerError, LedgerRejected, LedgerUnavailable
from ledger.event_file import EventFile
from ledger.events import EventLog, operator_tuples, parse_terms, term_tuple
from ledger.policy import DEFAULT_POLICY, ChainPolicy
from ledger.reader import RunReader
from ledger.records import (
    Attestation,
    Block,
    Commit,
    NewRun,
    Proposal,
    Registration,
    RegistrationRequest,
    RotationRequest,
    RunTerms,
    Strike,
)
from ledger.rpc import PATIENCE_SECONDS, Connection, ExpectedChain, Rpc, RpcError
from ledger.rules import check_digest
from ledger.sender import Sender
from ledger.wallet import Domain, address_of, checked_address

MAX_RUNS_LISTED = 1000


@dataclass(frozen=True, slots=True)
class Deployment:
    """Where a contract was deployed: what a run spec pins. `code_hash` is keccak256 of the code on chain."""

    contract: str
    chain_id: int
    block_hash: str
    code_hash: str


class _Place(TypedDict):
    domain: Domain
    run: str
    first_block: int


class LedgerClient(BaseLedger):
    """One contract seen through one or several RPC end-points, for one run (or none: `runs` and `terms(run)` only)."""

    def __init__(
        self,
        rpc: Connection,
        *,
        domain: Domain,
        code_hash: str,
        run: str | None = None,
        operator_key: bytes | None = None,
        sender: Sender | None = None,
    ) -> None:
        super().__init__(domain=domain, run=run, operator_key=operator_key)
        self._rpc = rpc
        self._sender = sender
        self._terms: dict[str, RunTerms] = {}
        self._reader: RunReader | None = None
        self._policy = DEFAULT_POLICY
        self._state_dir: Path | None = None
        self.code_hash = code_hash

    @classmethod
    async def connect(
        cls,
        urls: Sequence[str],
        *,
        contract: str,
        run: str | None = None,
        operator_key: bytes | None = None,
        state_dir: Path | None = None,
        chain_id: int | None = None,
        code_hash: str | None = None,
        deployment_block: str | None = None,
        patience: float = PATIENCE_SECONDS,
        policy: ChainPolicy = DEFAULT_POLICY,
    ) -> Self:
        """Connect and check every end-point that answers. What is expected of the chain is checked where it is given;
        `deployment_block`, a hash, tells apart chains that share an id.

        `state_dir` holds the sender's journal and what was read of the run's events. `patience` bounds, in seconds, how
        long a request tries the end-points; `policy` says how deep blocks must lie and what gas may cost.
        Raises LedgerUnavailable when none answers, LedgerMismatch when they disagree or are not what is expected,
        WalletError for a wrong address or key.
        """
        contract = checked_address(contract)
        if run is not None:
            check_digest(run)
        expected = ExpectedChain(chain_id, code_hash, deployment_block)
        rpc = Rpc(urls, contract=contract, expected=expected, patience=patience)
        try:
            seen_chain, seen_code = await rpc.connect()
            sender = (
                _sender(rpc, operator_key, chain_id=seen_chain, state_dir=state_dir, policy=policy)
                if operator_key is not None
                else None
            )
        except BaseException:
            await rpc.close()
            raise
        client = cls(
            rpc,
            domain=Domain(seen_chain, contract),
            code_hash=seen_code,
            run=run,
            operator_key=operator_key,
            sender=sender,
        )
        client._policy, client._state_dir = policy, state_dir
        return client

    async def close(self) -> None:
        """Close connections. A transaction under way stays journalled."""
        if self._reader is not None:
            self._reader.close()
        await self._rpc.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def runs(self) -> Sequence[str]:
        """Ids of the newest runs of the contract (at most 1,000), oldest first."""
        count = (await self._view("run_count"))[0]
        start = max(0, count - MAX_RUNS_LISTED)
        return [(await self._view("run_ids", index))[0].hex() for index in range(start, count)]

    async def terms(self, run: str | None = None) -> RunTerms:
        """Terms of a run (default: this client's). They never change. Raises LedgerError for an unknown run."""
        run = run or self._must_have_run()
        if run not in self._terms:
            key = check_digest(run)
            held = (await self._view("runs", key))[0]
            self._terms[run] = parse_terms(run, held, await self._view("operators", key))
        return self._terms[run]

    async def head(self) -> Block:
        """The newest block."""
        return await (await self._read()).head()

    async def block(self, number: int) -> Block | None:
        """Block by number; None when it is not there yet."""
        return await (await self._read()).block(number)

    async def registrations(self, until: int | None = None) -> Mapping[str, Registration]:
        """Registrations in force, by node, now or as of block `until`. Not to be changed by the caller."""
        return await (await self._read()).registrations(until)

    async def _log(self) -> EventLog:
        return await (await self._read()).events()

    async def balance(self) -> int:
        """Wei the operator account holds."""
        return quantity(await self._rpc.call("eth_getBalance", self._must_have_sender().address, "latest"))

    async def create_run(self, **terms: Unpack[NewRun]) -> RunTerms:
        """Open a run. Repeated with the same terms by the same owner it is a success (so a deployment resumes)."""
        run = terms["run"]
        wanted = RunTerms(owner=self._must_have_sender().address, created_block=0, **terms)
        operators = operator_tuples(wanted.validators), operator_tuples(wanted.trainers)
        try:
            await self._send("create_run", check_digest(run), term_tuple(wanted), *operators)
        except LedgerRejected as error:
            held = await self.terms(run) if error.reason == "run exists" else None
            if held is None or replace(held, created_block=0) != wanted:
                raise
        return await self.terms(run)

    async def _send_registration(self, request: RegistrationRequest) -> None:
        await self._send("register", *registration_arguments(request))

    async def _send_commit(self, commit: Commit) -> None:
        digests = check_digest(commit.manifest), check_digest(commit.parent)
        run = check_digest(self._must_have_run())
        await self._send("commit_checkpoint", run, commit.term, commit.step, *digests, commit.final)

    async def _send_tally(self, proposal: Proposal, attestations: Sequence[Attestation]) -> None:
        await self._send("finalise", tally_arguments(proposal), [hex_bytes(each.signature) for each in attestations])

    async def _send_rotation(self, request: RotationRequest) -> None:
        await self._send("rotate", *rotation_arguments(request))

    async def _send_strike(self, strike: Strike, attestations: Sequence[Attestation]) -> None:
        signatures = [hex_bytes(each.signature) for each in attestations]
        await self._send("strike", *strike_arguments(strike), signatures)

    async def _call(self, name: str, *arguments: object) -> None:
        value = 0
        if name in PAYABLE:
            amount = int(str(arguments[-1]))
            value = await self._amount_to_send(amount)
        await self._send(name, check_digest(self._must_have_run()), *arguments_of(name, arguments), value=value)

    async def _amount_to_send(self, amount: int) -> int:
        """Wei to send with a payment of the run's token; of another coin than the chain's, leave to take it is given."""
        token = (await self.terms()).token
        if token is None:
            return amount
        allowed = await self._allowance(token)
        if allowed < amount:
            # Some tokens take a new allowance only in place of none.
            for wanted in (0, amount) if allowed else (amount,):
                data = encode_token_call("approve", self.domain.contract, wanted)
                await self._must_have_sender().send(token, data)
        return 0

    async def _allowance(self, token: str) -> int:
        """Base units of a token that the contract may take from the operator."""
        data = encode_token_call("allowance", self._must_have_sender().address, self.domain.contract)
        try:
            answer = await self._rpc.call("eth_call", {"to": token, "data": data}, "latest")
        except RpcError as error:
            raise LedgerUnavailable(f"the RPC end-point refused to read the token: {error.message}") from error
        try:
            return quantity(answer)
        except LedgerUnavailable as error:
            raise LedgerError(f"the run's token {token} does not answer like an ERC-20") from error

    async def _send(self, name: str, *arguments: object, value: int = 0) -> None:
        await self._must_have_sender().send(self.domain.contract, abi.encode_call(name, *arguments), value)

    async def _settle(self) -> None:
        await self._must_have_sender().settle()
        await (await self._read()).refresh(now=True)

    async def _view(self, name: str, *arguments: object) -> tuple[Any, ...]:
        call = {"to": self.domain.contract, "data": abi.encode_call(name, *arguments)}
        try:
            return abi.decode_result(name, await self._rpc.call("eth_call", call, "latest"))
        except RpcError as error:
            raise LedgerUnavailable(f"the RPC end-point refused to read {name}: {error.message}") from error

    async def _read(self) -> RunReader:
        terms = await self.terms()
        if self._reader is None:  # without a wait from here on: two of them would want one file
            place: _Place = {"domain": self.domain, "run": terms.run, "first_block": terms.created_block}
            file = EventFile(self._state_dir, **place) if self._state_dir else None
            self._reader = RunReader(
                self._rpc,
                **place,
                confirmations=self._policy.confirmations,
                file=file,
                pass_over=self._rpc.pass_over,
            )
        return self._reader

    def _must_have_sender(self) -> Sender:
        if self._sender is None:
            raise LedgerError("no operator key: this node can only read the ledger")
        return self._sender


async def deploy(
    url: str, key: bytes, *, state_dir: Path | None = None, policy: ChainPolicy = DEFAULT_POLICY
) -> Deployment:
    """Deploy the registry contract, paid by `key`, and check the code on chain. With `state_dir`, one that was begun or
    done before is not deployed again. Raises LedgerUnavailable, LowBalance, LedgerMismatch."""
    rpc = Rpc([url])
    try:
        chain_id, _ = await rpc.connect()
        sender = _sender(rpc, key, chain_id=chain_id, state_dir=state_dir, policy=policy)
        receipt = await sender.deploy(abi.built()["bytecode"])
        contract = checked_address(deployed_at(receipt))
        checked = Rpc([url], contract=contract, expected=ExpectedChain(chain_id, built_code_hash()))
        try:
            _, code_hash = await checked.connect()
        finally:
            await checked.close()
        return Deployment(contract, chain_id, receipt["blockHash"][2:], code_hash)
    finally:
        await rpc.close()


def built_code_hash() -> str:
    """keccak256 of the code that this version's contract has on a chain."""
    return str(keccak(abi.unhex(abi.built()["bytecode_runtime"])).hex())


def _sender(rpc: Rpc, key: bytes, *, chain_id: int, state_dir: Path | None, policy: ChainPolicy) -> Sender:
    journal = None
    if state_dir is not None:
        make_folder(state_dir)
        # A key's nonces are the chain's, whatever the contract: one journal per key and chain.
        journal = state_dir / f"transaction-{chain_id}-{address_of(key)[2:].lower()}.json"
    return Sender(rpc, key, chain_id=chain_id, journal=journal, policy=policy)
