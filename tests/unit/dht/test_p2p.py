"""Locks, ports and sockets of the daemon."""

from __future__ import annotations

import asyncio
import os
import socket
from pathlib import Path

import pytest

from dht import p2p
from dht.locks import StartError, locked, reserved_ports
from dht.p2p import parse_reachability, remove_stale_sockets


def test_locked__second_holder_is_told_who__boot_13(tmp_path: Path) -> None:
    with locked(tmp_path / "lock", "data folder"), pytest.raises(StartError, match=f"in use.*{os.getpid()}"):
        with locked(tmp_path / "lock", "data folder"):
            pass
    with locked(tmp_path / "lock", "data folder"):
        assert (tmp_path / "lock").read_text() == str(os.getpid())
    assert not (tmp_path / "lock").exists()


def test_locked__unusable_folder__key_06(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StartError, match="check its owner"), locked(tmp_path / "file" / "lock", "data folder"):
        pass


def test_reserved_ports__port_taken_names_the_holder__boot_12() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(StartError, match=rf"port {port}.*held by .*process {os.getpid()}"):
            with reserved_ports([f"/ip4/127.0.0.1/tcp/{port}"]):
                pass


def test_reserved_ports__two_nodes_one_port__boot_13() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"/ip4/127.0.0.1/tcp/{probe.getsockname()[1]}"
    with reserved_ports([address]), pytest.raises(StartError, match="in use by another node"):
        with reserved_ports([address]):
            pass


@pytest.mark.parametrize("address", ["", "127.0.0.1:80", "/ip4/1.2.3.4.5/tcp/1", "/ip4/127.0.0.1/sctp/1"])
def test_reserved_ports__bad_address(address: str) -> None:
    with pytest.raises(StartError, match="cannot listen"), reserved_ports([address]):
        pass


def test_remove_stale_sockets__only_ours_of_dead_processes() -> None:
    folder = Path(p2p._TEMPORARY)
    dead, alive, foreign = (
        folder / "intellect-node-999999999-test.sock",
        folder / f"intellect-node-{os.getpid()}-test.sock",
        folder / "hivemind-p2pd-intellect-test.sock",
    )
    for path in (dead, alive, foreign):
        path.touch()
    try:
        remove_stale_sockets()
        assert [path.exists() for path in (dead, alive, foreign)] == [False, True, True]
    finally:
        alive.unlink()
        foreign.unlink()


async def test_open_calls__a_reply_to_a_call_given_up_is_nobodys__dht_03() -> None:
    calls = p2p._OpenCalls()
    future = calls["call"] = asyncio.get_running_loop().create_future()
    assert "call" in calls
    future.cancel()  # its place is cleared only later; a reply that comes before must not end the reader
    assert "call" not in calls


async def test_running_tasks__cancelled_ones_are_forgotten__dht_16() -> None:
    tasks = p2p._RunningTasks()
    task = tasks["call"] = asyncio.create_task(asyncio.Event().wait())
    task.cancel()
    await asyncio.wait({task})
    await asyncio.sleep(0)
    assert not tasks
    tasks.pop("call")


@pytest.mark.parametrize(
    ("metrics", "verdict"),
    [
        (
            "# HELP x\nlibp2p_autonat_reachability_status 2\nlibp2p_autonat_reachability_status_confidence 3\n",
            "private",
        ),
        ("libp2p_autonat_reachability_status 1\n", "public"),
        ("libp2p_autonat_reachability_status 0\n", "unknown"),
        ("", "unknown"),
    ],
)
def test_parse_reachability__autonats_verdict__nat_01(metrics: str, verdict: str) -> None:
    assert parse_reachability(metrics) == verdict


def test_options__a_client_listens_on_nothing_and_asks_no_router__nat_12(tmp_path: Path) -> None:
    """A worker's address is known to nobody, so settings for reaching it are ignored."""
    listening = (["/ip4/0.0.0.0/tcp/4001"], ["/ip4/8.8.8.8/tcp/4001"])
    options = p2p._options(tmp_path / "node.key", *listening, client_mode=True)
    assert (options["no_listen"], options["nat_port_map"], options["dht_mode"]) == (True, False, "client")
    assert options["host_maddrs"] is None
    assert "announce_maddrs" not in options
