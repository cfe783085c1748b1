"""The one string that a joiner needs: `intellect://<run id>?peer=<multiaddr>&rpc=<url>&relay=<url>`.
Pure except for `read_join`.

Every part may repeat. Nothing in it is trusted: the spec is checked against the run id, and addresses are only tried.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import parse_qsl, quote, urlsplit

from dht.errors import Malformed
from dht.peers import parse_peer
from node.defaults import MAX_JOIN_BYTES
from node.errors import UsageError

SCHEME = "intellect"
MAX_PARTS = 64
_RUN = re.compile(r"^[0-9a-f]{64}$")


@dataclass(frozen=True, slots=True)
class JoinString:
    """A run's id and where to look for it: DHT peers, ledger end-points, relays' base URLs."""

    run: str
    peers: tuple[str, ...] = ()
    rpc: tuple[str, ...] = ()
    relays: tuple[str, ...] = ()

    def __str__(self) -> str:
        """The form that `parse_join` reads."""
        parts = [("peer", value) for value in self.peers]
        parts += [("rpc", value) for value in self.rpc] + [("relay", value) for value in self.relays]
        query = "&".join(f"{name}={quote(value, safe=':/@.')}" for name, value in parts)
        return f"{SCHEME}://{self.run}" + (f"?{query}" if query else "")


def parse_join(text: str) -> JoinString:
    """Parse a join string, or a bare run id. Raises UsageError naming the wrong part."""
    text = text.strip()
    if _RUN.match(text):
        return JoinString(text)
    try:
        parts = urlsplit(text)
    except ValueError:  # brackets without a valid IPv6 address
        parts = urlsplit("")
    if parts.scheme != SCHEME or not _RUN.match(parts.netloc):
        raise UsageError(
            f"{text[:80]!r} is not a join string; it looks like intellect://<64 hex digits>?peer=..&rpc=.. "
            "and is printed by the run's operator (intellect-node run show)"
        )
    found: dict[str, list[str]] = {"peer": [], "rpc": [], "relay": []}
    for name, value in _fields(parts.query):
        if name not in found:
            raise UsageError(f"join string: unknown part {name[:32]!r}; known are peer, rpc and relay")
        found[name].append(value)
    join = JoinString(parts.netloc, tuple(found["peer"]), tuple(found["rpc"]), tuple(found["relay"]))
    check_places(join, where="join string")
    return join


def _fields(query: str) -> list[tuple[str, str]]:
    try:
        return parse_qsl(query, max_num_fields=MAX_PARTS)
    except ValueError as error:
        raise UsageError(f"join string: more than {MAX_PARTS} parts") from error


def check_places(join: JoinString, *, where: str) -> None:
    """Check the form of each address. Raises UsageError naming the first invalid one."""
    for peer in join.peers:
        try:
            parse_peer(peer)
        except Malformed as error:
            raise UsageError(
                f"{where}: {peer[:80]!r} is not a peer address like /ip4/1.2.3.4/tcp/31330/p2p/12D3KooW..: {error}"
            ) from error
    for url in (*join.rpc, *join.relays):
        if not is_web_address(url):
            raise UsageError(f"{where}: {url[:80]!r} is not an address like http://host:port or https://host")


def is_web_address(url: str) -> bool:
    """Whether this is an http or https URL with a host and a valid port."""
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        return False


def read_join(text: str) -> JoinString:
    """Parse a join string, given directly or as the first line of a file. Raises UsageError."""
    if text.startswith(f"{SCHEME}:") or "://" in text or _RUN.match(text):
        return parse_join(text)
    try:
        with Path(text).expanduser().open() as file:
            content = file.read(MAX_JOIN_BYTES)
    except PermissionError as error:
        raise UsageError(
            f"cannot read the join file {text[:80]}: {error.strerror}; check its owner and mode"
        ) from error
    except UnicodeDecodeError as error:
        raise UsageError(f"the file {text[:80]} is not text, so it holds no join string") from error
    except (OSError, ValueError, RuntimeError) as error:  # missing, a folder, too long, a NUL, no home folder
        raise UsageError(
            f"{text[:80]!r} is neither a join string (intellect://..) nor a file that holds one; "
            "the run's operator hands it out"
        ) from error
    return parse_join(content.strip().partition("\n")[0])
