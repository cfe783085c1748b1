"""What the actors need from outside, as protocols; adapters in dht, ledger and shardcast fit by shape."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from dht.envelope import Envelope
from ledger.records import (
    Attestation,
    Block,
    Commit,
    FinalRoot,
    HeldStrike,
    Lease,
    Proposal,
    Registration,
    RunTerms,
    Stake,
    Strike,
    ValidatorSet,
)


class Clock(Protocol):
    """Unix milliseconds."""

    def __call__(self) -> int: ...


class Directory(Protocol):
    """Signed rows on a DHT. It decides nothing: absence means "unknown"."""

    async def publish(self, row: Envelope) -> None:
        """Store a row; returns once another peer was seen to hold it. Raises TransportError."""

    async def read(self, keys: Sequence[str]) -> Mapping[str, Sequence[Envelope]]:
        """Verified, unexpired rows under each key. Raises TransportError."""


class Announcer(Protocol):
    """Signs messages of ours, publishes them, keeps them published."""

    async def publish(
        self,
        *,
        kind: str,
        record_key: str,
        subkey: str,
        payload: bytes,
        lifetime: int,
        hint: bytes = b"",
        keep_seconds: int | None = None,
    ) -> Envelope: ...

    def withdraw(self, record_key: str, subkey: str) -> None: ...


class Offer(Protocol):
    """A checkpoint that a relay says it has; nothing of it is verified."""

    @property
    def manifest(self) -> str: ...

    @property
    def step(self) -> int: ...


class Relays(Protocol):
    """The relays, as their client sees them."""

    async def put(self, data: bytes, *, last: Collection[str] = ()) -> tuple[str, ...]:
        """Upload under signed grants, to those of `last` only when the others do not suffice; ids of the relays that
        hold it. Raises TransportError when none does."""

    async def get(self, digest: str, *, limit: int, relays: Sequence[str] = ()) -> bytes:
        """Bytes with this SHA-256. Raises TransportError when no relay has them."""

    async def fetch_manifest(self, digest: str) -> Envelope:
        """The signed manifest with this digest. Raises TransportError."""

    async def fetch_checkpoint(self, digest: str, into: Path) -> Path:
        """A verified checkpoint directory, complete or not there at all. Raises TransportError."""

    async def watch(self, told: Callable[[Offer], None], *, held: Callable[[], str]) -> None:
        """Tell of each checkpoint that relays have, the moment one has it; runs until cancelled.

        `held` gives the manifest digest this node has now, or nothing. What is told is some relay's word.
        """

    def received(self, manifest: str) -> Mapping[str, int]:
        """Verified bytes of a checkpoint fetched here, by the relay they came from. Returned once, then forgotten."""

    async def put_checkpoint(
        self, manifest: Envelope, directory: Path, *, delta: tuple[Envelope, Path] | None = None, whole: bool = True
    ) -> tuple[str, ...]:
        """Publish manifest and shards; ids of the relays that hold all of it. Raises TransportError when none does.

        `delta`: the signed row and the folder of a delta to it. Not `whole`: relays that can rebuild the shards do.
        """


class Ledger(Protocol):
    """The contract: who is eligible, what is committed, what is final. Raises LedgerError."""

    async def terms(self) -> RunTerms: ...

    async def head(self) -> Block: ...

    async def block(self, number: int) -> Block | None: ...

    async def registrations(self, until: int | None = None) -> Mapping[str, Registration]:
        """Registrations in force, by node, now or as of block `until`."""

    async def renew(self) -> None: ...

    async def report_lapse(self) -> None: ...

    async def take_over(self) -> None: ...

    async def commits(self, from_step: int = 0) -> Sequence[Commit]: ...

    async def final_roots(self) -> Sequence[FinalRoot]: ...

    async def lease(self, until: int | None = None) -> Lease:
        """Who leads, in which term, and until when, now or as of block `until`."""

    async def validators_at(self, block: int | None = None) -> ValidatorSet:
        """Whose attestations count, now or as of a block."""

    async def funds_at(self, block: int | None = None) -> int:
        """Base units that roots may promise in all, now or as of a block."""

    async def stakes(self) -> Mapping[tuple[str, str], Stake]:
        """Stakes by (node, wallet)."""

    async def strikes(self) -> Sequence[HeldStrike]:
        """Every strike in the order made."""

    async def attest_strike(self, strike: Strike) -> Attestation: ...

    async def check_strike_attestation(self, strike: Strike, attestation: Attestation) -> bool: ...

    async def strike(self, strike: Strike, attestations: Sequence[Attestation]) -> None: ...

    async def attest_lift(self, node: str, number: int) -> Attestation: ...

    async def check_lift_attestation(self, node: str, number: int, attestation: Attestation) -> bool: ...

    async def lift(self, node: str, number: int, attestations: Sequence[Attestation]) -> None: ...

    async def commit_checkpoint(self, *, term: int, step: int, manifest: str, parent: str, final: bool) -> None: ...

    async def attest(self, proposal: Proposal) -> Attestation: ...

    async def check_attestation(self, proposal: Proposal, attestation: Attestation) -> bool: ...

    async def finalise(self, proposal: Proposal, attestations: Sequence[Attestation]) -> None: ...
