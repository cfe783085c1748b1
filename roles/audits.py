"""Which submissions a validator audits: decided by a coin that nobody else can foresee and that its owner could prove.

`coin = first 8 bytes of sha256(sign(validator key, ("audit/1", run, submission)))`, as an integer; the audit is due
below `rate / 1000 * 2^64`. ed25519 signatures are deterministic: there is one coin per validator and submission, no
worker can compute it beforehand, and the signature would prove it afterwards. Pure.
"""

from __future__ import annotations

import hashlib

from dht.encoding import pack
from dht.identity import NodeKey

DOMAIN = "audit/1"


class AuditCoin:
    """One validator's coin in one run. `rate` is in thousandths; 1000 audits everything."""

    def __init__(self, key: NodeKey, *, run: str, rate: int) -> None:
        self._key, self._run, self._rate = key, run, rate

    def __call__(self, digest: str) -> bool:
        """Whether to audit this submission."""
        if self._rate >= 1000:
            return True
        signature = self._key.sign(pack(DOMAIN, self._run, digest))
        return int.from_bytes(hashlib.sha256(signature).digest()[:8], "big") * 1000 < self._rate << 64


def sketch_secret(key: NodeKey, run: str) -> bytes:
    """The key for a validator's sketches of completions (`roles.verification.duplicates`): known to nobody else, and
    the same after a restart."""
    return key.sign(pack("sketches/1", run))
