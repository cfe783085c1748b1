"""Upload grants, and the hint that carries relay ids in a row. Pure."""

from __future__ import annotations

import base64
import binascii
import os
from collections.abc import Iterable

from dht.encoding import encode
from dht.envelope import MAX_HINT, Envelope, from_bytes, seal, to_bytes
from dht.errors import Malformed
from dht.identity import NodeKey
from roles.messages import ROW_RULES, UploadGrant, open_row, place_of, subkey_for

GRANT_KIND = "grant/1"
GRANT_LIFE_MS = 5 * 60 * 1000
"""Half of what a relay accepts, so that clocks may differ by five minutes."""
MAX_GRANT_LIFE_MS = ROW_RULES[GRANT_KIND].lifetime * 1000


def seal_grant(key: NodeKey, *, run: str, relay: str, blob: str, size: int, now_ms: int) -> str:
    """A fresh grant for one relay and one blob, as the value of the `X-Grant` header."""
    grant = UploadGrant(relay=relay, blob=blob, size=size, nonce=os.urandom(16).hex())
    record_key, _ = place_of(grant, run=run, buckets=1)
    row = seal(
        key,
        run=run,
        kind=GRANT_KIND,
        record_key=record_key,
        subkey=subkey_for(grant, run=run, signer=key.node, buckets=1),
        sequence=now_ms,
        expiration=now_ms + GRANT_LIFE_MS,
        payload=encode(grant),
    )
    return base64.b64encode(to_bytes(row)).decode()


def open_grant(header: str, *, run: str) -> tuple[Envelope, UploadGrant]:
    """Parse and verify the header. Raises Malformed."""
    limit = ROW_RULES[GRANT_KIND].max_bytes
    if len(header) > 4 * limit // 3 + 4:
        raise Malformed("grant is too long")
    try:
        row = from_bytes(base64.b64decode(header, validate=True), limit=limit)
    except (binascii.Error, ValueError) as error:
        raise Malformed("grant is not base64") from error
    grant = open_row(row, run=run, buckets=1)
    if not isinstance(grant, UploadGrant):
        raise Malformed("row is not a grant")
    return row, grant


def hint_of(relays: Iterable[str]) -> bytes:
    """Relay ids, comma-separated, as many as fit in a row's hint."""
    kept: list[str] = []
    for relay in relays:
        if len(",".join([*kept, relay])) > MAX_HINT:
            break
        kept.append(relay)
    return ",".join(kept).encode()


def relays_in(hint: bytes) -> tuple[str, ...]:
    """The relay ids in a hint. Anything else in it is dropped: a hint is only a hint."""
    names = hint[:MAX_HINT].decode("ascii", errors="replace").split(",")
    return tuple(dict.fromkeys(name for name in names if name.startswith("12D3KooW") and len(name) <= 64))
