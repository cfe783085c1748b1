"""Positions of nodes on the DHT. A place is a 160-bit number, in the same space as the hashes of keys."""

from __future__ import annotations

import hashlib
from functools import lru_cache

from dht.bare import DHTID, PeerID

PLACE_BYTES = 20  # length of a node's or a key's place; hivemind asserts the length of what peers send


@lru_cache(maxsize=8192)
def place_of_peer(peer: PeerID) -> DHTID:
    """A node's place on the DHT, derived from its peer id. So a node cannot choose its place, and a
    restart leaves no stale entry behind."""
    return DHTID(int.from_bytes(hashlib.sha1(b"place/1" + peer.to_bytes(), usedforsecurity=False).digest(), "big"))
