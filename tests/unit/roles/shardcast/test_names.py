"""Host names of relays: resolved in the background, once at a time, and only to permitted addresses."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import httpx
import pytest

from roles.shardcast.manifest import manifest_digest
from roles.shardcast.names import Names
from roles.shardcast.relay_http import make_http
from roles.shardcast.replies import RelayInfo, is_inside, is_usable
from tests.unit.roles.shardcast.line import is_same
from tests.unit.roles.shardcast.network import TRAINER, make_checkpoint, make_envelope, running_network


class Resolver:
    """Knows `relay.example`; for `*.evil.example` it does not answer until released."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.let_go = threading.Event()

    def __call__(self, host: str) -> Sequence[str]:
        self.asked.append(host)
        if host.endswith(".evil.example"):
            self.let_go.wait(60)
        if host != "relay.example":
            raise OSError("no such host")
        return ["127.0.0.1"]


@pytest.fixture
def resolver() -> Iterator[Resolver]:
    resolver = Resolver()
    yield resolver
    resolver.let_go.set()


async def test_find__slow_names_hold_up_nothing_else(resolver: Resolver) -> None:
    async with make_http(names=Names(resolver)) as http, asyncio.timeout(30), asyncio.TaskGroup() as group:
        hanging = [group.create_task(http.get(f"http://{number}.evil.example/", timeout=60)) for number in range(40)]
        await asyncio.sleep(0)
        assert await asyncio.to_thread(lambda: "other work") == "other work"
        with pytest.raises(httpx.ConnectError):
            await http.get("http://relay.example:1/")  # it was found: nobody listens there
        for task in hanging:
            task.cancel()


async def test_find__a_look_up_that_takes_too_long_is_given_up(resolver: Resolver) -> None:
    async with make_http(names=Names(resolver)) as http:
        with pytest.raises(httpx.ConnectTimeout, match=r"no answer to where a\.evil\.example is"):
            await http.get("http://a.evil.example/", timeout=0.05)


async def test_find__a_name_is_asked_for_once_and_its_failure_remembered(resolver: Resolver) -> None:
    names = Names(resolver)
    for _ in range(3):
        assert await names.find("relay.example", within=5.0) == ["127.0.0.1"]
        with pytest.raises(OSError, match="no such host"):
            await names.find("nowhere.example", within=5.0)
    assert resolver.asked == ["relay.example", "nowhere.example"]
    names.close()


@pytest.mark.parametrize("address", ["10.0.0.7", "::1", "fe80::1%eth0", "169.254.169.254"])
async def test_find__a_name_that_leads_into_ones_own_network(address: str) -> None:
    names = Names(lambda host: ["93.184.216.34", address])
    names.may_lead_inside = {"mine.example"}.__contains__
    assert address in await names.find("mine.example", within=5.0)
    with pytest.raises(OSError, match="leads into this machine's own network"):
        await names.find("rebound.example", within=5.0)
    names.close()


@pytest.mark.parametrize("address", ["127.0.0.1", "::1", "fe80::1%eth0"])
async def test_find__an_address_is_not_looked_up(resolver: Resolver, address: str) -> None:
    assert await Names(resolver).find(address, within=1.0) == [address]
    assert resolver.asked == []


@pytest.mark.parametrize("bulk", [1, 2**30], ids=["by lanes", "by the loop"])
async def test_checkpoint__goes_over_relays_that_have_names(tmp_path: Path, resolver: Resolver, bulk: int) -> None:
    source = make_checkpoint(tmp_path / "source")
    envelope = make_envelope(source)
    async with running_network(tmp_path, relays=1) as network, make_http(names=Names(resolver)) as http:
        (info,) = network.infos
        network.infos[:] = [RelayInfo(info.node, info.url.replace("127.0.0.1", "relay.example"))]
        network.http, network.bulk = http, bulk
        await network.client(TRAINER).put_checkpoint(envelope, source)
        fetched = await network.client().fetch_checkpoint(manifest_digest(envelope), tmp_path / "into")
    assert is_same(fetched, source)
    assert resolver.asked == ["relay.example"]


@pytest.mark.parametrize(
    ("url", "usable"),
    [
        ("http://relay.example:8080", True),
        ("https://relay.example/behind/a/proxy", True),
        ("http://[2001:db8::1]:80", True),
        ("http://127.0.0.1:8080", True),
        ("http://h/admin?x=", False),  # what is put behind it would be the query's
        ("http://h/admin#", False),
        ("http://h/?", False),
        ("http://user@h/", False),
        ("file:///etc/passwd", False),
        ("http://2130706433/", False),  # 127.0.0.1
        ("http://0/", False),
        ("http://0x7f.1/", False),
        ("http://h\u202e.example/", False),
        ("http://h/\x1b[2J", False),
        ("http://h:99999/", False),
        ("http://" + "h" * 300, False),
    ],
)
def test_is_usable__of_what_a_peer_wrote(url: str, usable: bool) -> None:
    assert is_usable(url) is usable


@pytest.mark.parametrize(
    ("url", "inside"),
    [
        ("http://relay.example", False),
        ("http://93.184.216.34", False),
        ("http://localhost:80", True),
        ("http://relay-2:80", True),  # a name without a domain
        ("http://127.0.0.1", True),
        ("http://10.0.0.7", True),
        ("http://169.254.169.254", True),  # where clouds keep credentials
        ("http://[::1]", True),
        ("http://[::ffff:127.0.0.1]", True),
        ("http://[64:ff9b::7f00:1]", True),  # 127.0.0.1 behind a gateway
        ("http://[64:ff9b::808:808]", False),
        ("http://[2002:a00:7::1]", True),  # 10.0.0.7 in 6to4
        ("http://printer.local", True),
    ],
)
def test_is_inside__this_machine_and_its_network(url: str, inside: bool) -> None:
    assert is_inside(url) is inside
