"""The status in a terminal: the page's figures, as many as fit, and a summary in plain lines."""

from __future__ import annotations

import asyncio
import io
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from node.commands.status import main
from node.errors import ConfigError
from node.status.client import page_url, write_status_file
from node.status.server import status_of_story, status_server
from node.status.watch import render, summary_lines, watch
from tests.browser.told import told_network


def status_of(**sizes: int) -> dict[str, Any]:
    return {"role": "testnet", **status_of_story(told_network(**sizes).story)}


def drawn(status: dict[str, Any], *, width: int = 100, height: int = 40) -> str:
    console = Console(file=io.StringIO(), width=width, height=height, record=True)
    console.print(render(status, width=width, height=height))
    return console.export_text()


def test_render__figures_submissions_and_nodes() -> None:
    text = drawn(status_of(steps=6))
    for part in (
        "6 trained of 30",
        "0.330 -> 0.480",
        "2 (1 sampling_mismatch, 1 wrong_prompt)",
        "worker-2",
        "refused: sampling_mismatch",
    ):
        assert part in text


@pytest.mark.parametrize(("width", "height"), [(80, 24), (60, 30), (200, 60)])
def test_render__fits_the_terminal(width: int, height: int) -> None:
    lines = drawn(status_of(steps=4, workers=40), width=width, height=height).splitlines()
    assert len(lines) <= height
    assert all(len(line) <= width for line in lines)


def test_render__before_anything_was_said() -> None:
    assert "no submission has been seen yet" in drawn(
        {"role": "worker", "node": "12D3KooW", "facts": {"phase": "starting"}}
    )


def test_render__words_of_peers_are_no_markup_and_steer_no_terminal() -> None:
    """A relay's refusal is shown verbatim: a bracket in it must not end the display."""
    said = "[/red] \x1b[2J[link=http://x]here"
    status = {
        "role": said,
        "facts": {"phase": said, "title": said, "totals": {"refused": 1}},
        "refusals": {said: 1},
        "wallets": [{"wallet": said}],
        "submissions": [{"worker": said, "outcome": said, "reason": said, "seen": 1}],
        "nodes": [{"name": said, "state": said, "said": said}, {"name": "b"}],
    }
    for shown in (status, {**status, "nodes": [], "recent": [{"event": said}], "ledger_down": said}):
        text = drawn(shown, width=200)
        assert "\x1b" not in text
        assert text.count("[/red] ?[2J[link=http://x]here") >= 4


def test_summary_lines__one_fact_a_line() -> None:
    lines = summary_lines(status_of(steps=3))
    assert "step         3 trained of 30" in lines
    assert "accepted     5 submissions (4500 tokens)" in lines
    assert "refused      1 (1 sampling_mismatch)" in lines


async def test_watch__draws_what_the_node_tells(tmp_path: Path) -> None:
    console, story = Console(file=io.StringIO(), width=100, height=40, record=True), told_network(steps=5).story
    async with status_server(0, lambda: {"role": "testnet"}, story=story) as port:
        write_status_file(tmp_path, port=port)
        await asyncio.to_thread(watch, tmp_path, console=console, times=1)
    assert "5 trained of 30" in console.export_text()


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("127.0.0.1", "http://127.0.0.1:80/"),
        ("192.168.1.5", "http://192.168.1.5:80/"),
        ("0.0.0.0", "http://127.0.0.1:80/"),  # noqa: S104
        ("::", "http://[::1]:80/"),
    ],
)
def test_page_url__where_the_node_listens(tmp_path: Path, host: str, url: str) -> None:
    write_status_file(tmp_path, host=host, port=80)
    assert page_url(tmp_path) == url


@pytest.mark.parametrize("text", ["", "[]", '{"port": "x"}', "{}"])
def test_page_url__damaged_file_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "status.json").write_text(text)
    with pytest.raises(ConfigError, match="is damaged; restart the node"):
        page_url(tmp_path)


def test_watch__no_node_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no node has run in"):
        watch(tmp_path, times=1)


def test_main__watch_and_json_exclude_each_other(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["--watch", "--json"])
    assert "not allowed with" in capsys.readouterr().err


def test_summary_lines__of_a_worker_tell_its_own_from_the_runs() -> None:
    own = {"id": "12D3KooWown", "accepted": 2, "refused": 1}
    shown = {**status_of(steps=3), "role": "worker", "node": "12D3KooWown", "nodes": [own, {"id": "12D3KooWother"}]}
    lines = summary_lines(shown)
    assert "accepted     2 of this node's submissions" in lines
    assert "refused      1" in lines
    assert "whole run    5 submissions (4500 tokens) accepted" in lines
