"""The keys that a development chain funds. A separate module, so that naming them does not load an EVM."""

from __future__ import annotations

import hashlib

ACCOUNTS = 256
"""How many accounts derived from the seed hold coins at the start."""


def devnet_accounts(count: int, seed: str) -> tuple[bytes, ...]:
    """The first `count` (at most 256) secret keys that a devnet with this seed funds."""
    if not 0 <= count <= ACCOUNTS:
        raise ValueError(f"a devnet funds {ACCOUNTS} accounts")
    prefix = b"devnet-account/1" + hashlib.sha256(seed.encode()).digest()
    return tuple(hashlib.sha256(prefix + index.to_bytes(4, "big")).digest() for index in range(count))
