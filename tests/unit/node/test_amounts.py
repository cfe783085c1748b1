"""Amounts as typed and as shown."""

from __future__ import annotations

import pytest

from node.amounts import parse_amount, show_amount, show_briefly
from node.errors import UsageError


@pytest.mark.parametrize(
    ("text", "amount"),
    [
        ("1500", 1500),
        ("0.5eth", 5 * 10**17),
        ("3 gwei", 3 * 10**9),
        ("1.000000000000000001 ETH", 10**18 + 1),
        ("7wei", 7),
    ],
)
def test_parse_amount(text: str, amount: int) -> None:
    assert parse_amount(text) == amount


@pytest.mark.parametrize(
    "text", ["", "0", "0eth", "-1", "1.5", "1.5.5eth", "1e18", "eth", "0.5wei", "1.1234567891gwei", "9" * 40, "²"]
)
def test_parse_amount__refuses(text: str) -> None:
    with pytest.raises(UsageError):
        parse_amount(text)


def test_parse_amount__of_something_endless_both_ends_are_shown() -> None:
    with pytest.raises(UsageError, match=r"'11111111111111111111\.\.1111111eth' is not an amount"):
        parse_amount("1" * 80 + "eth")


@pytest.mark.parametrize(
    ("amount", "token", "shown"),
    [
        (0, None, "0 eth"),
        (999, None, "999 wei"),
        (25 * 10**17, None, "2.5 eth"),
        (10**20, None, "100 eth"),
        (5, "0xab", "5 base units of 0xab"),
    ],
)
def test_show_amount(amount: int, token: str | None, shown: str) -> None:
    assert show_amount(amount, token) == shown


@pytest.mark.parametrize(
    ("amount", "token", "shown"),
    [
        (146_649_634_000_555_400, None, "0.146649 eth"),
        (999_999_999_999_999_998, None, "0.999999 eth"),
        (28 * 10**17, None, "2.8 eth"),
        (123_456_789 * 10**18 + 1, None, "123456789 eth"),
        (1_234_567_891, None, "0.00000000123456 eth"),
        (12, None, "12 wei"),
        (5, "0xab", "5 base units of 0xab"),
    ],
)
def test_show_briefly(amount: int, token: str | None, shown: str) -> None:
    assert show_briefly(amount, token) == shown
