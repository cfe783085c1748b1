"""Peers: parsing of addresses, a record of which peers answered recently, and an address
cache on disk. No network access."""

from __future__ import annotations

import ipaddress
import json
import re
import statistics
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import structlog

from dht.disk import write_durably
from dht.errors import Malformed
from dht.identity import NodeId, public_key_of

MAX_ADDRESS = 256
MAX_CACHED = 256
MAX_TRACKED = 2048
_MAX_CACHE_FILE = MAX_CACHED * (MAX_ADDRESS + 64)
_HOST_NAME = re.compile(
    r"^(?=.{1,253}$)[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?(\.[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?)*\.?$"
)

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class PeerAddress:
    """A peer and one address of it. `transport` is the multiaddr before the last /p2p/."""

    node: NodeId
    transport: str

    def __str__(self) -> str:
        return f"{self.transport}/p2p/{self.node}"


def parse_peer(text: str) -> PeerAddress:
    """Parse `/ip4/1.2.3.4/tcp/31337/p2p/12D3Koo..`, also ip6, dns, quic-v1 and relayed. Raises
    Malformed that says what is wrong."""
    text = text.strip()
    if len(text) > MAX_ADDRESS:
        raise Malformed(f"peer address is longer than {MAX_ADDRESS} characters")
    transport, found, node = text.rpartition("/p2p/")
    if not found:
        raise Malformed(f"peer address {text[:80]!r} does not end in /p2p/ and a node id")
    public_key_of(node)
    if transport.endswith("/p2p-circuit"):
        parse_peer(transport.removesuffix("/p2p-circuit"))
    else:
        check_transport(transport)
    return PeerAddress(node, transport)


def check_transport(text: str) -> tuple[str, int]:
    """Host and port of `/ip4/../tcp/..` and the like. Raises Malformed."""
    parts = text.split("/")
    if len(parts) < 5 or parts[0]:
        raise Malformed(f"address {text[:80]!r} is not like /ip4/1.2.3.4/tcp/31337")
    _, family, host, layer, port, *rest = parts
    _check_host(family, host)
    is_known = (layer == "tcp" and rest in ([], ["ws"])) or (layer == "udp" and rest == ["quic-v1"])
    if not is_known:
        raise Malformed(f"address {text[:80]!r} is neither tcp nor udp with quic-v1")
    if not port.isascii() or not port.isdecimal() or not 0 <= int(port[:6]) <= 65535 or len(port) > 5:
        raise Malformed(f"port {port[:16]!r} is not between 0 and 65535")
    return host, int(port)


def _check_host(family: str, host: str) -> None:
    try:
        if family == "ip4":
            ipaddress.IPv4Address(host)
        elif family == "ip6":
            ipaddress.IPv6Address(host)
        elif family not in ("dns", "dns4", "dns6") or not _HOST_NAME.match(host):
            raise Malformed(f"host {host[:80]!r} is not an ip4, ip6 or dns name")
    except ipaddress.AddressValueError as error:
        raise Malformed(f"host {host[:80]!r} is not an {family} address") from error


@dataclass(frozen=True, slots=True)
class PeerInfo:
    """What is known of one peer, for `status`. Times are unix seconds; `round_trip` and `skew` are seconds."""

    node: NodeId
    addresses: tuple[str, ...] = ()
    is_in_table: bool = False
    is_connected: bool = False
    round_trip: float | None = None
    skew: float | None = None
    reaches_us: bool | None = None
    failures: int = 0
    last_seen: float | None = None
    last_error: str = ""


class PeerBook:
    """Which peers answered, with what latency and clock skew, and which did not. Bounded."""

    def __init__(self) -> None:
        self._peers: dict[NodeId, PeerInfo] = {}

    def note_answer(
        self, node: NodeId, *, round_trip: float, skew: float | None = None, reaches_us: bool | None = None
    ) -> None:
        """Record that a peer answered. `round_trip` and `skew` are seconds."""
        old = self.get(node)
        smooth = round_trip if old.round_trip is None else 0.7 * old.round_trip + 0.3 * round_trip
        self._put(
            replace(
                old,
                round_trip=smooth,
                skew=old.skew if skew is None else skew,
                reaches_us=old.reaches_us if reaches_us is None else reaches_us,
                failures=0,
                last_seen=time.time(),
                last_error="",
            )
        )

    def note_failure(self, node: NodeId, error: str) -> None:
        """Record that a peer did not answer, and why."""
        old = self.get(node)
        self._put(replace(old, failures=old.failures + 1, last_error=error[:400]))

    def get(self, node: NodeId) -> PeerInfo:
        """What is known of a peer."""
        return self._peers.get(node) or PeerInfo(node)

    def all(self) -> list[PeerInfo]:
        """Every peer known."""
        return list(self._peers.values())

    def median_skew(self) -> float | None:
        """Peers' clocks minus ours, in seconds. The median, so that a single wrong clock
        has no effect (pitfall BOOT-16)."""
        skews = [peer.skew for peer in self._peers.values() if peer.skew is not None]
        return statistics.median(skews) if skews else None

    def _put(self, info: PeerInfo) -> None:
        self._peers.pop(info.node, None)
        self._peers[info.node] = info
        if len(self._peers) > MAX_TRACKED:
            del self._peers[next(iter(self._peers))]


@dataclass(slots=True)
class PeerCache:
    """Addresses that worked, on disk, newest last. A node can rejoin its network even
    when every seed is dead (BOOT-07)."""

    path: Path | None
    _seen: dict[str, float] = field(default_factory=dict)  # full address -> unix seconds
    _is_dirty: bool = False

    def __post_init__(self) -> None:
        self._seen = _load(self.path) if self.path is not None else {}

    def addresses(self) -> list[str]:
        """Full addresses, newest first."""
        return list(reversed(self._seen))

    def note(self, address: PeerAddress) -> None:
        """Record that an address worked just now."""
        self._seen.pop(str(address), None)
        self._seen[str(address)] = time.time()
        while len(self._seen) > MAX_CACHED:
            del self._seen[next(iter(self._seen))]
        self._is_dirty = True

    def save(self) -> None:
        """Write the cache if it changed. A failure (a full disk) is logged, never raised."""
        if self.path is None or not self._is_dirty:
            return
        try:
            write_durably(self.path, json.dumps(self._seen, indent=0).encode())
            self._is_dirty = False
        except OSError as error:
            log.warning("peer_cache.unwritable", path=str(self.path), cause=error.strerror)


def _load(path: Path) -> dict[str, float]:
    try:
        if path.stat().st_size > _MAX_CACHE_FILE:
            raise ValueError("too long")
        items = json.loads(path.read_text())
        pairs = [(str(parse_peer(text)), float(seen)) for text, seen in items.items()]
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, TypeError, AttributeError, RecursionError, Malformed) as error:
        log.warning("peer_cache.unreadable", path=str(path), cause=str(error)[:100])
        return {}
    return dict(sorted(pairs, key=lambda pair: pair[1])[-MAX_CACHED:])


def parse_peers(texts: Iterable[str]) -> Sequence[PeerAddress]:
    """Apply `parse_peer` to a list and remove duplicates. Raises Malformed."""
    return list(dict.fromkeys(map(parse_peer, texts)))
