"""Which submissions a validator audits: a coin nobody can foresee and its owner can prove, and every first one of a new node.

`coin = first 8 bytes of sha256(sign(validator key, ("audit/1", run, submission)))`, as an integer; the audit is due below
`rate / 1000 * 2^64`. ed25519 signatures are deterministic: there is one coin for a validator and a submission, no worker can
compute it beforehand, and the signature proves it afterwards. Pure.
"""

from __future__ import annotations

import hashlib

from dht.encoding import pack
from dht.identity import NodeKey, verify

DOMAIN = "audit/1"


class AuditCoin:
    """One validator's coin in one run. `rate` is in thousandths; 1000 audits everything."""

    def __init__(self, key: NodeKey, *, run: str, rate: int) -> None:
        self._key, self._run, self._rate = key, run, rate

    def __call__(self, digest: str) -> bool:
        """Whether to audit this submission."""
        return self._rate >= 1000 or is_called(self.proof(digest), self._rate)

    def proof(self, digest: str) -> bytes:
        """The signature from which others can compute the same coin."""
        return self._key.sign(_message(self._run, digest))


def is_called(proof: bytes, rate: int) -> bool:
    """Whether the coin in this signature requires an audit at this rate (thousandths)."""
    return int.from_bytes(hashlib.sha256(proof).digest()[:8], "big") * 1000 < rate << 64


def check_coin(proof: bytes, *, validator: str, run: str, digest: str, rate: int) -> bool | None:
    """Whether the validator had to audit the submission; None when the proof is not its signature."""
    return is_called(proof, rate) if verify(validator, _message(run, digest), proof) else None


def sketch_secret(key: NodeKey, run: str) -> bytes:
    """What a validator keys its sketches of completions with (`roles.verification.duplicates`): nobody else's, and the same
    after a restart."""
    return key.sign(pack("sketches/1", run))


def _message(run: str, digest: str) -> bytes:
    return pack(DOMAIN, run, digest)
