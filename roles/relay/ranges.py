"""HTTP ranges, one at a time (RFC 9110, section 14). Pure."""

from __future__ import annotations

import re

from roles.relay.refusal import Refusal

_RANGE = re.compile(r"bytes=(\d{0,18})-(\d{0,18})")


def parse_range(header: str | None, size: int) -> tuple[int, int] | None:
    """Parse a range to (start, length); None means the whole. `bytes=-5` of 10 -> (5, 5). Raises Refusal (416)."""
    match = _RANGE.fullmatch(header.strip()) if header else None
    if match is None:
        return None  # several ranges, or another unit: sending the whole is a correct response
    first, last = match.groups()
    if not first and not last:
        return None
    if not first:
        start, end = max(0, size - int(last)), size
    else:
        start, end = int(first), min(int(last) + 1, size) if last else size
    if start >= end:
        raise Refusal(416, "range_not_satisfiable", f"the blob has {size} bytes")
    return start, end - start
