"""The testnet's page: nodes before their first event, wallets by name, and nodes started by hand."""

from __future__ import annotations

import json
from pathlib import Path

import httpx
import pytest

from node.testnet.live import Frame
from node.testnet.page import TestnetPage
from node.testnet.picture import Picture
from node.testnet.plan import TestnetOptions, make_plan


@pytest.fixture
def page(tmp_path: Path) -> TestnetPage:
    options = TestnetOptions(directory=tmp_path, workers=1, validators=3, relays=1, steps=9)
    return TestnetPage(make_plan(options), options)


def frame(**contributions: tuple[int, int]) -> Frame:
    return Frame(
        picture=Picture(quorum=2), steps=9, seconds=1.0, run="ab" * 32, join_command="join", block=12,
        contributions=contributions, states={"worker-1": "killed"},
    )  # fmt: skip


def test_page__every_node_before_it_says_anything(page: TestnetPage) -> None:
    rows = [row for _, row in page.story.tables.rows("node")]
    assert len(rows) == 6
    assert {row["state"] for row in rows} == {"not started"}


def test_draw__states_block_and_wallets(page: TestnetPage, tmp_path: Path) -> None:
    wallet = make_plan(TestnetOptions(directory=tmp_path, workers=1)).workers[0].wallet
    assert wallet
    page.draw(frame(**{wallet: (5, -1)}))
    assert page.story.tables.get("node", "worker-1")["state"] == "killed"
    assert page.story.tables.get("wallet", wallet) == {
        "wallet": wallet, "final": 5, "pending": 0, "nodes": ["worker-1"],
    }  # fmt: skip
    assert page.story.tables.get("facts", "all")["block"] == 12


def test_take_guests__a_node_started_by_hand(page: TestnetPage, tmp_path: Path) -> None:
    home = tmp_path / "my-worker"
    home.mkdir()
    event = {"ts": 1.0, "role": "worker", "event": "node.started", "node": "12D3KooWmine", "version": "1"}
    (home / "events.jsonl").write_text(json.dumps(event) + "\n")
    page.draw(frame())
    page.draw(frame())
    assert page.story.tables.get("node", "my-worker")["state"] == "starting"
    assert len(page.story.tables.rows("log")) == 1


async def test_serve__found_by_the_testnets_folder(page: TestnetPage, tmp_path: Path) -> None:
    async with page.serve() as url, httpx.AsyncClient(trust_env=False) as http:
        port = json.loads((tmp_path / "status.json").read_text())["port"]
        assert url == f"http://127.0.0.1:{port}/"
        assert len((await http.get(f"{url}status.json")).json()["nodes"]) == 6
