"""The status endpoint: what it answers, to whom, and that a node is found by its folder."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest

from node.errors import ConfigError
from node.status.client import read_status
from node.status.server import answer, format_metrics, status_server

STATUS = {"role": "worker", "step": 3, "loop_lag_p99_seconds": 0.25, "events": {"submission.sent": 2}}


def ask(line: str, host: str = "127.0.0.1:80") -> bytes:
    return answer(f"{line}\r\nHost: {host}\r\n\r\n".encode(), lambda: STATUS)


def test_answer__status_as_json() -> None:
    head, _, body = ask("GET /status HTTP/1.1").partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200")
    assert json.loads(body) == STATUS


@pytest.mark.parametrize(
    ("line", "host", "code"),
    [
        ("GET /status HTTP/1.1", "evil.example", 403),  # a web page that rebinds its name to loopback
        ("POST /status HTTP/1.1", "localhost", 405),
        ("GET /secrets HTTP/1.1", "localhost:9", 404),
        ("nonsense", "localhost", 400),
    ],
)
def test_answer__refuses(line: str, host: str, code: int) -> None:
    assert ask(line, host).startswith(f"HTTP/1.1 {code}".encode())


def test_format_metrics__numbers_and_event_counts() -> None:
    text = format_metrics(STATUS)
    assert "intellect_node_loop_lag_p99_seconds 0.25\n" in text
    assert 'intellect_node_events_total{event="submission.sent"} 2\n' in text
    assert "worker" not in text


async def test_status_server__port_in_use_is_a_sentence() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=f"cannot open the status port {port}"):
            async with status_server(port, lambda: STATUS):
                pass


def test_read_status__folder_without_a_node(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no node has run in"):
        read_status(tmp_path)


def test_read_status__node_that_has_gone(tmp_path: Path) -> None:
    with socket.socket() as held:  # bound, never listening
        held.bind(("127.0.0.1", 0))
        (tmp_path / "status.json").write_text(json.dumps({"port": held.getsockname()[1], "pid": 1}))
        with pytest.raises(ConfigError, match="does not run"):
            read_status(tmp_path)
