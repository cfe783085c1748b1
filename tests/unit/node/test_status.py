"""The status server: its responses, who may read them, how streams resume, and that a node is found by its folder."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from node.defaults import STATUS_WATCHERS
from node.errors import ConfigError
from node.status.client import read_status
from node.status.guard import is_local_name
from node.status.pages import FOLDER, page_files
from node.status.server import status_server
from node.status.story import Story
from roles.relay.server import PortTaken

STATUS = {"role": "worker", "step": 3, "loop_lag_p99_seconds": 0.25, "events": {"submission.sent": 2}}
SENT = {"ts": 5.0, "event": "submission.sent", "step": 3, "index": 0, "submission": "ab" * 32, "tokens": 7, "relays": 2}


@pytest.fixture
def story() -> Story:
    told = Story()
    told.take("worker", SENT)
    return told


@pytest.fixture
async def http(story: Story) -> AsyncIterator[httpx.AsyncClient]:
    async with (
        status_server(0, lambda: STATUS, story=story) as port,
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", trust_env=False, timeout=5) as client,
    ):
        yield client


async def frames(reply: httpx.Response, count: int) -> list[tuple[str, Any]]:
    """The first messages of a stream: id and data."""
    found: list[tuple[str, Any]] = []
    last = ""
    async with asyncio.timeout(5):
        async for line in reply.aiter_lines():
            if line.startswith("id: "):
                last = line.removeprefix("id: ")
            elif line.startswith("data: "):
                found.append((last, json.loads(line.removeprefix("data: "))))
                if len(found) == count:
                    return found
    return found


async def test_status_json__status_and_story(http: httpx.AsyncClient) -> None:
    status = (await http.get("/status.json")).json()
    assert status["step"] == 3
    assert status["submissions"][0]["tokens"] == 7


async def test_page__whole_and_closed_to_others(http: httpx.AsyncClient) -> None:
    reply = await http.get("/")
    assert reply.headers["content-type"].startswith("text/html")
    assert "default-src 'none'" in reply.headers["content-security-policy"]
    assert reply.headers["cross-origin-resource-policy"] == "same-origin"
    assert (await http.get("/page/main.js")).headers["content-type"].startswith("text/javascript")


@pytest.mark.parametrize("path", ["/page/../server.py", "/page/%2e%2e/server.py", "/page//etc/passwd", "/secrets"])
async def test_page__nothing_but_its_files(http: httpx.AsyncClient, path: str) -> None:
    assert (await http.get(path)).status_code == 404


async def test_guard__a_name_that_leads_here_is_refused(http: httpx.AsyncClient) -> None:
    assert (await http.get("/status.json", headers={"Host": "evil.example"})).status_code == 403
    assert (await http.post("/status.json")).status_code == 405


@pytest.mark.parametrize("host", ["127.0.0.1:80", "localhost", "LOCALHOST:9", "[::1]:80", "[::1]", "10.1.2.3:80", ""])
def test_is_local_name__addresses(host: str) -> None:
    assert is_local_name(host)


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", "localhost.evil:1", " "])
def test_is_local_name__names(host: str) -> None:
    assert not is_local_name(host)


async def test_live__everything_then_only_what_is_new(http: httpx.AsyncClient, story: Story) -> None:
    async with http.stream("GET", "/live") as reply:
        (_, first), (last, rows) = await frames(reply, 2)
    assert first["reset"]
    assert {row[0] for row in rows["rows"]} == {"submission", "node", "log"}
    story.take("worker", {"ts": 6.0, "event": "submission.accepted", "step": 3, "index": 0, "submission": "ab" * 32})
    async with http.stream("GET", "/live", headers={"Last-Event-ID": last}) as reply:
        (_, again), (_, new) = await frames(reply, 2)
    assert not again["reset"]
    assert [row[2]["outcome"] for row in new["rows"] if row[0] == "submission"] == ["accepted"]
    assert sum(row[0] == "log" for row in new["rows"]) == 1


@pytest.mark.parametrize("last", ["00000000-5", "nonsense", "-", "00000000-" + "9" * 400])
async def test_live__id_of_another_life_starts_anew(http: httpx.AsyncClient, last: str) -> None:
    async with http.stream("GET", "/live", headers={"Last-Event-ID": last}) as reply:
        ((_, first),) = await frames(reply, 1)
    assert first["reset"]


async def test_events__replayed_from_the_last_one_seen(http: httpx.AsyncClient, story: Story) -> None:
    async with http.stream("GET", "/events") as reply:
        ((last, event),) = await frames(reply, 1)
    assert (event["event"], event["fields"]["tokens"]) == ("submission.sent", 7)
    story.take("worker", {"ts": 6.0, "event": "worker.ended"})
    async with http.stream("GET", "/events", headers={"Last-Event-ID": last}) as reply:
        ((_, event),) = await frames(reply, 1)
    assert event["event"] == "worker.ended"


async def test_events__at_most_so_many_watch(http: httpx.AsyncClient) -> None:
    async with asyncio.TaskGroup() as group:
        requests = [
            group.create_task(http.send(http.build_request("GET", "/events"), stream=True))
            for _ in range(STATUS_WATCHERS)
        ]
    assert (await http.get("/events")).status_code == 503
    for request in requests:
        await request.result().aclose()


async def test_live__says_that_it_ends(http: httpx.AsyncClient, story: Story) -> None:
    async with http.stream("GET", "/live") as reply:
        story.close()
        assert "event: end" in [line async for line in reply.aiter_lines()]


async def test_status_server__port_in_use_is_a_sentence(story: Story) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=rf"the status page: cannot listen on .*:{port}: .*--status-port$"):
            async with status_server(port, lambda: STATUS, story=story):
                pass


async def test_status_server__another_servers_taken_port_is_not_its_own(story: Story) -> None:
    with pytest.raises(PortTaken):
        async with status_server(0, lambda: STATUS, story=story):
            raise PortTaken("of the relay")


def test_page_files__load_nothing_from_elsewhere() -> None:
    own = [file for path, file in page_files().items() if not path.endswith(("LICENSE.txt", "uplot.js", ".woff2"))]
    assert len(own) > 10
    for file in own:
        text = file.body.decode().replace("http://www.w3.org/2000/svg", "")
        assert "http://" not in text
        assert "https://" not in text
        assert "innerHTML" not in text
    assert {path.name for path in FOLDER.glob("vendor/*LICENSE*")} == {"uplot-LICENSE.txt", "inter-LICENSE.txt"}


def test_read_status__folder_without_a_node(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no node has run in"):
        read_status(tmp_path)


def test_read_status__node_that_has_gone(tmp_path: Path) -> None:
    with socket.socket() as held:  # bound, never listening
        held.bind(("127.0.0.1", 0))
        (tmp_path / "status.json").write_text(json.dumps({"port": held.getsockname()[1], "pid": 1}))
        with pytest.raises(ConfigError, match="does not run"):
            read_status(tmp_path)
