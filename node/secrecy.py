"""What may be shown of a setting. End-points often contain an access key, and some people paste a private key. Pure."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import urlsplit

_PRIVATE_KEY = re.compile(r"^\s*(0x)?[0-9a-fA-F]{64}\s*$")
_URL = re.compile(r"https?://[^\s,;)'\"&]+")


def is_private_key(text: str) -> bool:
    """Whether this looks like a secp256k1 private key where an address or a file is expected."""
    return bool(_PRIVATE_KEY.match(text))


def shown_url(url: str) -> str:
    """Scheme, host and port. `/..` replaces everything else, which may be an access key."""
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
        place = f"[{host}]" if ":" in host else host
        place += f":{parts.port}" if parts.port else ""
    except ValueError:
        return "an address that cannot be read"
    has_more = parts.path.strip("/") or parts.query or parts.username or parts.password or parts.fragment
    return f"{parts.scheme}://{place}{'/..' if has_more else ''}"


def shown_value(value: Any) -> str:
    """A setting's value in a form safe to show: URLs without anything that may be a key."""
    if isinstance(value, tuple | list):
        return ", ".join(map(shown_value, value)) or "-"
    if value is None or value == "":
        return "-"
    return _URL.sub(lambda found: shown_url(found[0]), str(value))
