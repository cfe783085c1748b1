"""Relays' addresses and their unsigned JSON responses: bounded here, and trusted nowhere."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address
from typing import Any

import httpx

from dht.errors import TransportError
from roles.shardcast.errors import NotHeld, RelayRefused

MAX_URL = 256
_PLAIN = re.compile(r"[!\"$->@-~]+")
"""Printable ASCII without ? and #."""
_NUMBER = re.compile(r"(^|\.)(\d+|0x[0-9a-f]*)\.?$", re.IGNORECASE)
"""A last label that a resolver may read as an address in another notation, as `http://2130706433` is 127.0.0.1."""
_NAT64 = IPv6Network("64:ff9b::/96")
_INSIDE = (".localhost", ".local", ".internal", ".lan", ".home.arpa")
MAX_OFFERS = 64
MAX_TOKEN = 64
HELD_OPEN = 8.0
"""Seconds a request is held open: shorter than the silence after which a connection counts as dead."""


@dataclass(frozen=True, slots=True)
class RelayInfo:
    """A relay as described by its node record. `is_free`: its id cost nothing, so one party may have made many."""

    node: str
    url: str
    is_free: bool = False


@dataclass(frozen=True, slots=True)
class DeltaHint:
    """A delta as a relay lists it, unsigned: digests of its row and of two manifests, its
    size in bytes, and the relay."""

    delta: str
    base: str
    target: str
    size: int
    relay: RelayInfo = field(compare=False)


@dataclass(frozen=True, slots=True)
class Offer:
    """A checkpoint as a relay lists it, unsigned."""

    manifest: str
    term: int
    step: int


@dataclass(frozen=True, slots=True)
class News:
    """What a relay has now, newest first. `token` names this state; `deltas` start from what the client holds."""

    token: str
    offers: tuple[Offer, ...]
    deltas: tuple[DeltaHint, ...]


def read_held(said: Any) -> int:
    """Parse which shards of a checkpoint a relay holds: bit i is shard i. Raises ValueError, KeyError, TypeError."""
    return int(str(said["held"]), 16)


def read_news(relay: RelayInfo, said: Any) -> News:
    """Parse a relay's list of checkpoints and deltas. Raises ValueError, KeyError, TypeError."""
    token, listed, deltas = said["token"], said["manifests"], said.get("deltas", [])
    if type(token) is not str or len(token) > MAX_TOKEN or not token.isascii():
        raise ValueError("not a token")
    offers = tuple(Offer(_digest(entry["manifest"]), _count(entry["term"]), _count(entry["step"])) for entry in listed)
    return News(token, offers[:MAX_OFFERS], tuple(_delta_hint(relay, **entry) for entry in deltas))


def _count(number: object) -> int:
    if type(number) is not int or not 0 <= number < 2**63:
        raise ValueError("not a count")
    return number


def _digest(name: object) -> str:
    if not isinstance(name, str) or len(name) != 64:
        raise ValueError("not a digest")
    return name


def read_deltas(relay: RelayInfo, said: Any) -> list[DeltaHint]:
    """Parse a relay's list of deltas. Raises ValueError, KeyError, TypeError."""
    return [_delta_hint(relay, **entry) for entry in said["deltas"]]


def _delta_hint(relay: RelayInfo, *, delta: str, base: str, target: str, size: int) -> DeltaHint:
    if not all(isinstance(name, str) and len(name) == 64 for name in (delta, base, target)):
        raise ValueError("not a digest")
    if _count(size) < 1:
        raise ValueError("not a size")
    return DeltaHint(delta, base, target, size, relay)


@lru_cache(1024)
def is_usable(url: str) -> bool:
    """Whether a peer's address may be connected to at all: http(s)://host[:port][/path], and nothing that would change
    the meaning of a path appended to it."""
    try:
        parsed = httpx.URL(url)
        return (
            len(url) <= MAX_URL
            and _PLAIN.fullmatch(url) is not None
            and parsed.scheme in ("http", "https")
            and bool(parsed.host)
            and not parsed.userinfo
            and 0 < (parsed.port or 80) < 2**16
            and (host_address(parsed.host) is not None or not _NUMBER.search(parsed.host))
        )
    except (httpx.InvalidURL, ValueError):
        return False


def host_address(host: str) -> IPv4Address | IPv6Address | None:
    """The IP address that a host is written as; None for a name."""
    try:
        return ip_address(host)
    except ValueError:
        return None


def is_inside(url: str) -> bool:
    """Whether a usable address means this machine or its own network, as far as that shows without a look-up."""
    host = httpx.URL(url).host.rstrip(".").lower()
    return is_address_inside(host) if host_address(host) is not None else "." not in host or host.endswith(_INSIDE)


def is_address_inside(address: str) -> bool:
    """Whether an address, as returned by a resolver, is of this machine or its own network. Raises ValueError."""
    found = ip_address(address)
    if isinstance(found, IPv6Address):  # gateways embed IPv4 addresses in some of these
        found = found.sixtofour or (IPv4Address(int(found) % 2**32) if found in _NAT64 else found)
    return not found.is_global


def check_answer(status: int, body: bytes) -> None:
    """Raises NotHeld, TransportError, or RelayRefused with the relay's reason, unless the answer is a success."""
    if status in (200, 201):
        return
    if status == 404:
        raise NotHeld
    if status in (301, 302, 307, 308) or status < 200:
        raise TransportError(f"the relay answered {status}, which no relay should")
    code, detail = _refusal_of(body, status)
    if status >= 500 and status != 507:
        raise TransportError(f"the relay failed ({code}): {detail}")
    raise RelayRefused(code, detail)


def _refusal_of(data: bytes, status: int) -> tuple[str, str]:
    try:
        plain = httpx.Response(status, content=data).json()
        return str(plain["error"])[:64], str(plain["detail"])[:300]
    except (ValueError, KeyError, TypeError, RecursionError):
        return f"http_{status}", "no reason given"
