"""The ledger of a run on an EVM chain: reading, sending and attesting for nodes.

Owns the mapping between records and the registry contract. Knows nothing of the meaning of
steps, of messages or of the DHT.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Self, TypedDict, Unpack

from ledger import abi
from ledger.answers import quantity
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
from ledger.errors import LedgerError, LedgerRejected, LedgerUnavailable
from ledger.event_file import EventFile
from ledger.events import EventLog, operator_tuples, parse_terms, term_tuple
from ledger.json_rpc import RpcError
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
from ledger.rpc import PATIENCE_SECONDS, Connection, ExpectedChain, Rpc
from ledger.rules import check_digest
from ledger.sender import Sender, open_sender
from ledger.wallet import Domain, checked_address

MAX_RUNS_LISTED = 1000


class _Place(TypedDict):
    domain: Domain
    run: str
    first_block: int


class LedgerClient(BaseLedger):
    """One contract, reached through one or more RPC end-points, for one run (or none: then only
    `runs` and `terms(run)` work)."""

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
        """Connect to every end-point that answers and check it. Expectations about the chain are checked where given;
        `deployment_block`, a hash, distinguishes chains that share an id.

        `state_dir` holds the sender's journal and the run's events read so far. `patience` limits, in seconds, how long
        a request tries the end-points. `policy` sets how deep blocks must be and what gas may cost. Raises
        LedgerUnavailable when no end-point answers, LedgerMismatch when they disagree or are not what is expected,
        WalletError for a wrong address or key.
        """
        contract = checked_address(contract)
        if run is not None:
            check_digest(run)
        expected = ExpectedChain(chain_id, code_hash, deployment_block)
        rpc = Rpc(urls, contract=contract, expected=expected, patience=patience)
        try:
            seen_chain, seen_code = await rpc.connect()
            sender = None
            if operator_key is not None:
                sender = open_sender(rpc, operator_key, chain_id=seen_chain, state_dir=state_dir, policy=policy)
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
        """Close connections. A pending transaction stays in the journal."""
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
        """The block with this number; None when it does not exist yet."""
        return await (await self._read()).block(number)

    async def registrations(self, until: int | None = None) -> Mapping[str, Registration]:
        """Registrations in force, by node, now or as of block `until`. The caller must not modify the result."""
        return await (await self._read()).registrations(until)

    async def _log(self) -> EventLog:
        return await (await self._read()).events()

    async def balance(self) -> int:
        """Balance of the operator account, in wei."""
        return quantity(await self._rpc.call("eth_getBalance", self._must_have_sender().address, "latest"))

    async def create_run(self, **terms: Unpack[NewRun]) -> RunTerms:
        """Create a run. Succeeds if the same owner repeats it with the same terms, so
        that a deployment can be resumed."""
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
        """Wei to send with a payment in the run's token. If the token is not the chain's own coin, this is 0, and the
        contract is approved to take the amount."""
        token = (await self.terms()).token
        if token is None:
            return amount
        allowed = await self._allowance(token)
        if allowed < amount:
            # Some tokens require the old allowance to be reset to 0 before a new one is set.
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
        if self._reader is None:  # no await from here on: two readers would compete for one file
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
