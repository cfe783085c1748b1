"""ARCHITECTURE.md lists what the code has: every message with its fields, and every reason."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from roles.messages import ROW_RULES
from roles.rules import SENTENCES, Reason

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "ARCHITECTURE.md").read_text()


@pytest.mark.parametrize("kind", ROW_RULES)
def test_architecture__lists_every_field_of_every_message(kind: str) -> None:
    row = next(line for line in PAGE.splitlines() if line.startswith(f"| `{kind}`"))
    missing = [name for name in ROW_RULES[kind].message.model_fields if name != "kind" and name not in row]
    assert not missing


@pytest.mark.parametrize("reason", Reason)
def test_architecture__lists_every_reason(reason: Reason) -> None:
    assert reason.name in PAGE
    assert SENTENCES[reason]


def test_architecture__says_where_the_papers_terms_live__ux_04() -> None:
    (terms,) = [part for part in PAGE.split("\n\n") if part.startswith("Terms of the papers")]
    named = re.findall(r"`((?:roles|ledger)/[^`]+)`", terms)
    assert [place for place in named if not list(ROOT.glob(place.rstrip("/")))] == []
    for term in ("two-sided GRPO", "TOPLOC", "SHARDCAST", "async_level", "online filter"):
        assert term in terms
