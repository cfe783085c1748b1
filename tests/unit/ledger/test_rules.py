"""The conditions that readers and senders of the registry require of records."""

from __future__ import annotations

import pytest

from ledger.errors import LedgerError
from ledger.rules import check_digest


def test_check_digest__the_bytes() -> None:
    assert check_digest("ab" * 32) == b"\xab" * 32


@pytest.mark.parametrize(
    "text",
    [
        "",
        "ab" * 31,
        "AB" * 32,
        "0x" + "ab" * 31,
        "ab" * 31 + "  ",
        "ab " * 21 + " ",
        "\n" + "ab" * 31 + "\n",
        "xy" * 32,
        "ä" * 64,
    ],
)
def test_check_digest__anything_else_is_none(text: str) -> None:
    with pytest.raises(LedgerError, match="not a digest"):
        check_digest(text)
