"""Canonical bytes: length-prefixed parts, canonical JSON messages, digests. Knows no keys, no clock, no network.

Two rules make every encoding canonical: parts carry their lengths, so no two lists of parts share bytes; and a decoded
message is encoded again and must give the same bytes, so no two byte strings share a message.
"""

from __future__ import annotations

import hashlib
import json
from typing import Annotated, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from dht.errors import Malformed

Part = bytes | str | int
Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
"""SHA-256 as 64 lower-case hexadecimal digits."""
Natural = Annotated[int, Field(ge=0, lt=2**63)]

ZERO_DIGEST = "0" * 64
MAX_PARTS = 64


class Message(BaseModel):
    """Base of everything that is signed or hashed: frozen, strict, no unknown fields, and by convention no floats."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid", allow_inf_nan=False)


M = TypeVar("M", bound=Message)


def _part_bytes(part: Part) -> bytes:
    if isinstance(part, int):
        if not 0 <= part < 2**64:
            raise ValueError(f"integer part {part} does not fit in 64 bits")
        return part.to_bytes(8, "big")
    return part.encode() if isinstance(part, str) else part


def pack(*parts: Part) -> bytes:
    """Join parts, each prefixed with its length (4 bytes, big-endian). Integers are 8
    bytes big-endian, text is UTF-8."""
    return b"".join(len(data).to_bytes(4, "big") + data for data in map(_part_bytes, parts))


def unpack(data: bytes) -> list[bytes]:
    """Split what `pack` joined. Raises Malformed when bytes are missing or left over,
    or for more than MAX_PARTS parts."""
    parts: list[bytes] = []
    position = 0
    while position < len(data):
        end = position + 4 + int.from_bytes(data[position : position + 4], "big")
        if position + 4 > len(data) or end > len(data) or len(parts) == MAX_PARTS:
            raise Malformed("length prefix does not fit the data")
        parts.append(data[position + 4 : end])
        position = end
    return parts


def sha256(data: bytes) -> str:
    """SHA-256 of the bytes, as hexadecimal."""
    return hashlib.sha256(data).hexdigest()


def digest(*parts: Part) -> str:
    """SHA-256 over the packed parts, as hexadecimal."""
    return sha256(pack(*parts))


def encode(message: Message) -> bytes:
    """The canonical bytes of a message: JSON, keys sorted, no spaces, ASCII only."""
    plain = message.model_dump(mode="json")
    return json.dumps(plain, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False).encode()


def decode(cls: type[M], data: bytes) -> M:
    """Parse canonical bytes. Raises Malformed for anything `encode` would not have written."""
    try:
        message = cls.model_validate_json(data)
        canonical = encode(message)
    except (ValidationError, ValueError, RecursionError) as error:
        raise Malformed(f"not a valid {cls.__name__}: {_first_line(error)}") from error
    if canonical != data:
        raise Malformed(f"{cls.__name__} is not in canonical form")
    return message


def _first_line(error: Exception) -> str:
    if isinstance(error, ValidationError):
        first = error.errors(include_url=False, include_input=False)[0]
        return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"[:200]
    return str(error).partition("\n")[0][:200]
