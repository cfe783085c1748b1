"""Contributions shown for a wallet, including what its nodes earned before it signed for them."""

from __future__ import annotations

from argparse import Namespace
from dataclasses import replace
from typing import Any, Literal

import pytest

from ledger.records import Leaf, Registration, by_any_key
from node.commands.claim import _is_meant, _keys
from node.commands.contributions import Report, _print_totals, _totals
from node.contributions import Contributions
from node.earnings import Holding, Holdings
from tests.builders import WORKERS

NODE, NEW = WORKERS[0].node, WORKERS[1].node
WALLET, CLAIMED = "0x" + "AA" * 20, "0x" + "11" * 20
LINKED = {NODE: Registration(NODE, WALLET, None, nonce=2, first_block=1, block=9)}
CLAIMS = {NODE: Registration(NODE, None, CLAIMED, nonce=1, first_block=1, block=1)}


@pytest.mark.parametrize(
    ("registrations", "totals"),
    [
        (LINKED, {WALLET: (120, 3)}),
        (CLAIMS, {f"{CLAIMED} (unlinked)": (100, 0), WALLET: (20, 3)}),
        ({}, {f"{NODE} (no wallet)": (100, 0), WALLET: (20, 3)}),
    ],
    ids=["linked", "claims", "no wallet"],
)
def test_by_wallet__what_a_node_did_before_the_link_is_the_wallets(
    registrations: dict[str, Registration], totals: dict[str, tuple[int, int]]
) -> None:
    final = {(NODE, None): 100, (NODE, WALLET): 20}
    assert Contributions(None, final, {(NODE, WALLET): 3}, registrations).by_wallet() == totals


def report_of(registrations: dict[str, Registration]) -> Report:
    """100 tokens counted without a wallet, 20 with it; the wallet gets the money for all of them."""
    leaves = (Leaf(NODE, None, 100, amount=0), Leaf(NODE, WALLET, 20, amount=12 * 10**17))
    return Report("ab" * 32, None, Holdings(None, None, [Holding(leaf, 0) for leaf in leaves]), (), (), registrations)


def asked(**changes: Any) -> Namespace:
    return Namespace(**{"wallet": None, "node": None, **changes})


def test_totals__of_a_linked_wallet_have_both_lines() -> None:
    rows = _totals(report_of(LINKED), asked(wallet=WALLET))
    assert [(row["wallet"], row["linked"], row["units"]) for row in rows] == [(WALLET, None, 20), (None, WALLET, 100)]


@pytest.mark.parametrize("key", [NODE, NEW])
def test_totals__of_a_node_are_those_of_all_its_keys(key: str) -> None:
    held = Registration(NEW, WALLET, None, nonce=0, first_block=1, block=9, previous=(NODE,))
    rows = _totals(report_of(by_any_key({NEW: held})), asked(node=key))
    assert [(row["node"], row["wallet"], row["linked"]) for row in rows] == [(NODE, WALLET, None), (NODE, None, WALLET)]


@pytest.mark.parametrize("key", [NODE, NEW])
def test_claim__of_a_node_is_for_all_its_keys(key: str) -> None:
    held = by_any_key({NEW: Registration(NEW, WALLET, None, nonce=0, first_block=1, block=9, previous=(NODE,))})
    holdings = report_of(held).found.holdings
    assert [each.leaf.wallet for each in holdings if _is_meant(each, None, _keys(key, held))] == [None, WALLET]
    assert not any(_is_meant(each, None, _keys(WORKERS[2].node, held)) for each in holdings)


def test_totals__of_an_address_that_a_node_once_named_have_none() -> None:
    assert _totals(report_of(LINKED), asked(wallet=CLAIMED)) == []


def test_print_totals__says_where_the_money_is(capsys: pytest.CaptureFixture[str]) -> None:
    report = report_of(LINKED)
    _print_totals(report, _totals(report, asked(wallet=WALLET)))
    said = capsys.readouterr().out
    assert f"{WALLET} +" in said
    assert (
        "+ counted before the node was linked to this wallet: what is earned here goes to the wallet's own line" in said
    )


@pytest.mark.parametrize(("role", "is_said"), [("worker", False), ("relay", True)])
def test_print_totals__says_what_each_role_is_counted_in(
    role: Literal["worker", "relay"], is_said: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    leaf = replace(Leaf(NODE, WALLET, 92_222_739), role=role)
    report = Report("ab" * 32, None, Holdings(None, None, [Holding(leaf, 0)]), (), (), {})
    _print_totals(report, _totals(report, asked()))
    assert ("a relay's are bytes" in capsys.readouterr().out) is is_said
