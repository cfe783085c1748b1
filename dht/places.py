"""Where nodes stand on the DHT: a place is a 160-bit number, as a key's is."""

from __future__ import annotations

import hashlib
from functools import lru_cache

from dht.bare import DHTID, PeerID

PLACE_BYTES = 20  # of a node's or a key's place; hivemind asserts what it is sent


@lru_cache(maxsize=8192)
def place_of_peer(peer: PeerID) -> DHTID:
    """A node's place on the DHT. Derived from its id: nobody can choose one, and a restart leaves no ghost behind."""
    return DHTID(int.from_bytes(hashlib.sha1(b"place/1" + peer.to_bytes(), usedforsecurity=False).digest(), "big"))
