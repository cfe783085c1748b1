"""The actors' external dependencies, as protocols. Adapters in dht, ledger and shardcast conform structurally."""

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
        """Store a row; returns once another peer has been seen to hold it. Raises TransportError."""

    async def read(self, keys: Sequence[str]) -> Mapping[str, Sequence[Envelope]]:
        """Verified, unexpired rows under each key. Raises TransportError."""


class Announcer(Protocol):
    """Signs this node's messages, publishes them, and republishes them before they expire."""

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
    """A checkpoint that a relay claims to have; nothing about it is verified."""

    @property
    def manifest(self) -> str: ...

    @property
    def step(self) -> int: ...


class Relays(Protocol):
    """The relays, as seen by their client."""

    async def put(self, data: bytes, *, last: Collection[str] = ()) -> tuple[str, ...]:
        """Upload under signed grants; relays in `last` are used only when the others do not suffice. Returns the ids of
        the relays that hold the data. Raises TransportError when none does."""

    async def get(self, digest: str, *, limit: int, relays: Sequence[str] = ()) -> bytes:
        """Bytes with this SHA-256. Raises TransportError when no relay has them."""

    async def fetch_manifest(self, digest: str) -> Envelope:
        """The signed manifest with this digest. Raises TransportError."""

    async def fetch_checkpoint(self, digest: str, into: Path) -> Path:
        """A verified checkpoint directory, either complete or absent. Raises TransportError."""

    async def watch(self, told: Callable[[Offer], None], *, held: Callable[[], str]) -> None:
        """Call `told` for each checkpoint that relays have, as soon as one has it. Runs until cancelled.

        `held` returns the manifest digest that this node has now, or an empty string. An offer is an unverified claim.
        """

    def received(self, manifest: str) -> Mapping[str, int]:
        """Verified bytes of a checkpoint fetched here, by source relay. The counts are cleared once returned."""

    async def put_checkpoint(
        self, manifest: Envelope, directory: Path, *, delta: tuple[Envelope, Path] | None = None, whole: bool = True
    ) -> tuple[str, ...]:
        """Publish the manifest and shards. Returns the ids of the relays that hold all of it. Raises
        TransportError when none does.

        `delta`: the signed row and the folder of a delta that leads to it. With `whole` False, relays that can rebuild
        the shards from the delta do so instead of receiving them.
        """


class Ledger(Protocol):
    """The contract: who is eligible, what is committed, what is final. Methods raise LedgerError."""

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
        """The leader, its term and when the lease ends, now or as of block `until`."""

    async def validators_at(self, block: int | None = None) -> ValidatorSet:
        """The validators whose attestations count, now or as of a block."""

    async def funds_at(self, block: int | None = None) -> int:
        """Total base units that roots may promise, now or as of a block."""

    async def stakes(self) -> Mapping[tuple[str, str], Stake]:
        """Stakes by (node, wallet)."""

    async def strikes(self) -> Sequence[HeldStrike]:
        """Every strike, in the order it was made."""

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
