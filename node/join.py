"""The one string a joiner needs: `intellect://<run id>?peer=<multiaddr>&rpc=<url>&relay=<url>`. Pure but for `read_join`.

Every part may repeat; nothing in it is believed: the spec is checked against the run id, addresses are only tried.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import parse_qsl, quote, urlsplit

from node.defaults import MAX_JOIN_BYTES
from node.errors import ConfigError

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
    """Read a join string, or a bare run id. Raises ConfigError naming the wrong part."""
    text = text.strip()
    if _RUN.match(text):
        return JoinString(text)
    parts = urlsplit(text)
    if parts.scheme != SCHEME or not _RUN.match(parts.netloc):
        raise ConfigError(
            f"{text[:80]!r} is not a join string; it looks like intellect://<64 hex digits>?peer=..&rpc=.. "
            "and is printed by the run's operator (intellect-node run show)"
        )
    found: dict[str, list[str]] = {"peer": [], "rpc": [], "relay": []}
    for name, value in parse_qsl(parts.query, max_num_fields=MAX_PARTS):
        if name not in found:
            raise ConfigError(f"join string: unknown part {name[:32]!r}; known are peer, rpc and relay")
        found[name].append(value)
    return _checked(JoinString(parts.netloc, tuple(found["peer"]), tuple(found["rpc"]), tuple(found["relay"])))


def _checked(join: JoinString) -> JoinString:
    for peer in join.peers:
        if not peer.startswith("/") or "/p2p/" not in peer:
            raise ConfigError(
                f"join string: {peer[:80]!r} is not a peer address like /ip4/1.2.3.4/tcp/31330/p2p/12D3KooW.."
            )
    for url in (*join.rpc, *join.relays):
        if not url.startswith(("http://", "https://")):
            raise ConfigError(f"join string: {url[:80]!r} is not an http:// or https:// address")
    return join


def read_join(text: str) -> JoinString:
    """A join string, or that in the first line of a file. Raises ConfigError."""
    if text.startswith(f"{SCHEME}:") or _RUN.match(text):
        return parse_join(text)
    path = Path(text).expanduser()
    if not path.is_file():
        return parse_join(text) if "://" in text else _refuse_path(text)
    try:
        with path.open() as file:
            content = file.read(MAX_JOIN_BYTES)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read the join file {path}: {error}") from error
    return parse_join(content.strip().partition("\n")[0])


def _refuse_path(text: str) -> JoinString:
    raise ConfigError(f"{text[:80]!r} is neither a join string nor a file that holds one")
