"""What one address or one node may use: token buckets, quotas, single-use grants. Pure
except for the clock passed in."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from dht.envelope import Envelope
from dht.identity import NodeId
from roles.messages import UploadGrant
from roles.relay.refusal import Refusal
from roles.shardcast.grants import MAX_GRANT_LIFE_MS

MAX_TRACKED = 65_536
LEAST_CHARGE = 4096
"""Minimum number of bytes charged for an upload, so that empty blobs are not free."""


class AddressRate:
    """A token bucket for each address: `rate` requests a second, bursts of `burst`. The least
    recently used address is evicted."""

    def __init__(self, *, rate: float, burst: float, clock: Callable[[], float]) -> None:
        self._rate, self._burst, self._clock = rate, burst, clock
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, address: str, requests: int = 1) -> bool:
        """Whether work that costs this many requests is admitted now."""
        now = self._clock()
        tokens, since = self._buckets.pop(address, (self._burst, now))
        tokens = min(self._burst, tokens + (now - since) * self._rate)
        is_admitted = tokens >= requests
        self._buckets[address] = (tokens - requests if is_admitted else tokens, now)
        if len(self._buckets) > MAX_TRACKED:
            self._buckets.popitem(last=False)
        return is_admitted

    def give_back(self, address: str) -> None:
        """Return the token of a request that turned out to be a member's."""
        if address in self._buckets:
            tokens, since = self._buckets[address]
            self._buckets[address] = (tokens + 1, since)


@dataclass(slots=True)
class _Usage:
    window: int
    bytes: int = 0
    uploads: int = 0


@dataclass(slots=True)
class Quota:
    """Bytes and uploads allowed per node in each window of `seconds`."""

    limit: int
    uploads: int
    seconds: float
    clock: Callable[[], float]
    _used: dict[NodeId, _Usage] = field(default_factory=dict)

    def charge(self, node: NodeId, size: int) -> None:
        """Charge an upload that is about to begin. Raises Refusal when it would exceed the quota."""
        usage = self._usage(node)
        cost = max(size, LEAST_CHARGE)
        if usage.bytes + cost > self.limit or usage.uploads >= self.uploads:
            raise Refusal(429, "over_quota", f"this node has used its quota of {self.limit} bytes for now")
        usage.bytes += cost
        usage.uploads += 1

    def refund(self, node: NodeId, size: int) -> None:
        """Refund bytes that never arrived; the upload itself stays counted."""
        usage = self._usage(node)
        usage.bytes = max(0, usage.bytes - size)

    def _usage(self, node: NodeId) -> _Usage:
        window = int(self.clock() / self.seconds)
        if len(self._used) > MAX_TRACKED:
            self._used = {name: usage for name, usage in self._used.items() if usage.window == window}
        usage = self._used.get(node)
        if usage is None or usage.window != window:
            usage = self._used[node] = _Usage(window)
        return usage


class GrantBook:
    """Judges grants and remembers used ones until they expire. `clock` gives unix milliseconds.

    Grants used before a restart are not remembered. Grants sealed before the restart are refused instead.
    """

    def __init__(self, relay: NodeId, *, clock: Callable[[], int]) -> None:
        self._relay, self._clock = relay, clock
        self._started_ms = clock()
        self._used: dict[tuple[NodeId, str], int] = {}
        self._swept_ms = self._started_ms

    def check(self, row: Envelope, grant: UploadGrant, *, blob: str, size: int) -> None:
        """Raises Refusal unless the grant is valid now for this relay, this blob and this length."""
        now = self._clock()
        if grant.relay != self._relay:
            raise Refusal(403, "grant_other_relay", "the grant is for another relay")
        if grant.blob != blob:
            raise Refusal(403, "grant_other_blob", "the grant is for another blob")
        if grant.size != size:
            raise Refusal(400, "grant_wrong_length", f"the grant is for {grant.size} bytes, the request for {size}")
        if row.expiration <= now:
            raise Refusal(403, "grant_expired", "the grant has expired; is the clock right?")
        if row.expiration > now + MAX_GRANT_LIFE_MS:
            raise Refusal(403, "grant_too_long", "a grant lives ten minutes at most; is the clock right?")
        if row.sequence < self._started_ms <= now:  # a start in the future means that the clock was set back since
            raise Refusal(403, "grant_stale", "the grant is older than this relay's start")
        if (row.signer, grant.nonce) in self._used:
            raise Refusal(409, "grant_used", "the grant has been used")

    def use(self, row: Envelope, grant: UploadGrant) -> None:
        """Mark a grant as used."""
        now = self._clock()
        if abs(now - self._swept_ms) > 60_000:
            self._used = {name: until for name, until in self._used.items() if until > now}
            self._swept_ms = now
        self._used[(row.signer, grant.nonce)] = row.expiration


@dataclass(frozen=True, slots=True)
class Members:
    """Who may upload what: trainers the shards their manifests list, members blobs up to a size, within their quota."""

    trainers: Collection[NodeId]
    is_member: Callable[[NodeId], bool]

    def check(self, node: NodeId) -> None:
        """Raises Refusal for a node that is neither a trainer nor a member."""
        if node not in self.trainers and not self.is_member(node):
            raise Refusal(403, "not_member", "this node is not registered in the run")
