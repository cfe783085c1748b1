"""The directory over real daemons on this machine."""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
import textwrap
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from dht import answers, hand_over, p2p
from dht.answers import KEY_BYTES, MAX_ROWS, REPLY_BYTES
from dht.bare import DHTID, PeerID
from dht.directory import HivemindDirectory
from dht.envelope import Envelope, to_bytes
from dht.errors import IdentityError, TransportError
from dht.hand_over import MOST_TO_GIVE
from dht.identity import NodeKey
from dht.locks import StartError
from dht.p2p import remove_stale_sockets, start_daemon
from dht.places import place_of_peer
from dht.protocol import FAILURES_TO_DROP
from dht.record_validator import EnvelopeValidator, pack_rows, wrap
from dht.records import Publisher
from dht.turns import ROWS_BETWEEN_YIELDS
from node.status.metrics import read_daemon_metrics

if TYPE_CHECKING:
    from tests.unit.dht.conftest import Swarm

RUN = "ab" * 32
KEY = f"{RUN}/nodes/worker"
ROOT = Path(__file__).resolve().parents[3]
Until = Callable[..., Awaitable[None]]


def sockets_of(pid: int) -> list[Path]:
    return list(Path(p2p._TEMPORARY).glob(f"intellect-node-{pid}-*.sock"))


async def test_publish__read_by_every_node__dht_17_dht_18_boot_15(swarm: Swarm) -> None:
    first, second, client = await swarm.start(), await swarm.start(), await swarm.start(client_mode=True)
    await swarm.met()
    for number, node in enumerate(swarm.nodes):
        await node.publish(swarm.row(number))
    for node in swarm.nodes:
        rows = (await node.read([KEY, f"{RUN}/empty"])).items()
        assert {key: len(found) for key, found in rows} == {KEY: 3, f"{RUN}/empty": 0}
    assert client.addresses() == []
    assert second.state == "online"
    assert first.clock_skew == pytest.approx(0, abs=1)


async def test_open__alone_with_dead_seeds__boot_01_boot_02_boot_03(swarm: Swarm, until: Until) -> None:
    seed = f"/ip4/127.0.0.1/tcp/1/p2p/{NodeKey.generate().node}"
    node = await swarm.start(initial_peers=[seed])
    assert node.state == "waiting for seeds"
    row = swarm.row(0)
    with pytest.raises(TransportError, match="no other node"):
        await node.publish(row)
    assert await node.read([KEY]) == {KEY: [row]}
    await until(lambda: node.peers()[0].failures >= 2)  # it goes on dialling, and says what went wrong (DHT-30)
    assert "dial" in node.peers()[0].last_error


async def test_add_peers__a_late_seed_is_as_good__boot_21(swarm: Swarm) -> None:
    first = await swarm.start()
    dead = f"/ip4/127.0.0.1/tcp/1/p2p/{NodeKey.generate().node}"
    second = await swarm.start(initial_peers=[dead])
    second.add_peers(["nonsense", *first.addresses()])
    await swarm.met()
    await second.publish(swarm.row(1))


async def test_open__simultaneous_starts_end_in_one_table__boot_09(swarm: Swarm) -> None:
    first = await swarm.start()
    await asyncio.gather(*(swarm.start(initial_peers=first.addresses()) for _ in range(3)))
    await swarm.met()


async def test_open__seeds_from_the_cache_on_disk__boot_07_live_11(swarm: Swarm, until: Until) -> None:
    first = await swarm.start()
    cache = swarm.base / "cache.json"
    address = first.addresses()[0]
    cache.write_text(f'{{"{address}": 1.0}}')
    second = await swarm.start(initial_peers=[], peer_cache=cache)
    await until(lambda: second.state == "online")


async def test_table__dead_nodes_leave_it__boot_10(swarm: Swarm, tmp_path: Path) -> None:
    first = await swarm.start()
    async with contextlib.AsyncExitStack() as stack:
        other = type(swarm)(stack, tmp_path / "other")
        dead = await other.start(initial_peers=first.addresses())
        async with asyncio.timeout(20):
            while not first.stats()["table"]:  # noqa: ASYNC110 - another process's doing
                await asyncio.sleep(0.02)
    session = first._upkeep.session
    assert session is not None
    for _ in range(FAILURES_TO_DROP):
        assert not await session.ping(dead.node_id)
    assert first.stats()["table"] == 0


async def test_hide__in_nobodys_table_and_back__nat_02(swarm: Swarm, until: Until) -> None:
    first, second = await swarm.start(), await swarm.start()
    await swarm.met()
    here, there = first._upkeep.session, second._upkeep.session
    assert here is not None
    assert there is not None
    there.protocol.hide(True)
    assert not await here.ping(second.node_id)
    assert first.stats()["table"] == 0
    await second.publish(swarm.row(1))  # it still speaks for itself
    there.protocol.hide(False)
    assert await here.ping(second.node_id)
    await until(lambda: first.stats()["table"] == 1)


async def test_read_reachability__unknown_on_loopback__nat_01(swarm: Swarm) -> None:
    session = (await swarm.start())._upkeep.session
    assert session is not None
    assert await session.daemon.read_reachability() == "unknown"


async def test_start_daemon__that_does_not_start_says_why__boot_19(tmp_path: Path) -> None:
    NodeKey.generate().save(tmp_path / "key")
    elsewhere = ["/ip4/203.0.113.1/tcp/4001"]
    with pytest.raises(StartError, match="cannot assign requested address"):
        await start_daemon(key_path=tmp_path / "key", host_maddrs=elsewhere, announce_maddrs=[], client_mode=False)


async def test_open__node_of_another_run_is_not_met__boot_04(swarm: Swarm, until: Until) -> None:
    first = await swarm.start()
    stranger = await swarm.start(run="cd" * 32)
    await until(lambda: "not support" in stranger.peers()[0].last_error)
    assert stranger.state == "waiting for seeds"
    assert first.stats()["table"] == 0


async def test_read__one_bad_row_costs_only_itself__dht_12_dht_13(swarm: Swarm) -> None:
    lax = await swarm.start(limits={"node/1": 90_000})  # keeps and serves what others refuse
    reader = await swarm.start()
    await swarm.met()
    good = swarm.row(1)
    await reader.publish(good)
    with pytest.raises(TransportError, match="refused"):
        await lax.publish(swarm.row(0, payload=b"x" * 50_000))
    assert len((await lax.read([KEY]))[KEY]) == 2
    assert await reader.read([KEY]) == {KEY: [good]}
    assert reader.stats()["table"] == 1  # the peer is kept


async def test_read__a_peers_strangers_do_not_push_out_members(swarm: Swarm) -> None:
    await swarm.start()  # keeps and serves everybody's rows
    reader = await swarm.start(membership=lambda row: row.signer == swarm.keys[1].node)
    await swarm.met()
    member, stranger = swarm.row(1), swarm.row(0)
    await reader.publish(member)
    swarm.nodes[0].storage.rows.put(stranger, stranger.sequence)
    assert len((await swarm.nodes[0].read([KEY]))[KEY]) == 2
    assert await reader.read([KEY]) == {KEY: [member]}


@contextlib.asynccontextmanager
async def calls_between_turns(monkeypatch: pytest.MonkeyPatch, owner: type, name: str) -> AsyncIterator[set[int]]:
    """How often a method is called between two turns of another task in the loop: every count that occurs."""
    work, counts, calls = getattr(owner, name), {0}, 0

    def counted(*given: Any) -> Any:
        nonlocal calls
        calls += 1
        return work(*given)

    async def have_turns() -> None:
        nonlocal calls
        while True:
            counts.add(calls)
            calls = 0
            await asyncio.sleep(0)

    monkeypatch.setattr(owner, name, counted)
    others = asyncio.create_task(have_turns())
    yield counts
    others.cancel()


def serve_flood(liar: HivemindDirectory, rows: Sequence[Envelope]) -> None:
    """Make it answer every request with these rows, more than its own store would keep."""
    packed = pack_rows([(row.subkey, wrap(to_bytes(row)), row.expiration / 1000) for row in rows])
    liar.storage.packed = lambda key: (packed, rows[0].expiration / 1000)  # type: ignore[method-assign]


async def test_read__valid_rows_of_free_ids_by_the_thousand_hold_up_nothing_else(
    swarm: Swarm, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each costs the reader a signature check; other tasks in its loop must get turns in between."""
    liar = await swarm.start()
    reader = await swarm.start(membership=lambda row: row.signer == swarm.keys[1].node)
    await swarm.met()
    member = swarm.row(1)
    await reader.publish(member)
    serve_flood(liar, [swarm.row(0, subkey=f"{liar.node_id}:{number}") for number in range(MAX_ROWS + 100)])
    async with calls_between_turns(monkeypatch, EnvelopeValidator, "open") as counts:
        assert await reader.read([KEY]) == {KEY: [member]}
    assert 1 < max(counts) <= 4 * ROWS_BETWEEN_YIELDS  # of several readers
    assert reader.node is not None
    assert sum(len(rows) for _, rows in reader.node.protocol._answers._seen.values()) == MAX_ROWS


async def test_read__a_reply_of_more_than_one_holds_is_none(swarm: Swarm) -> None:
    liar, reader = await swarm.start(), await swarm.start()
    await swarm.met()
    await reader.publish(swarm.row(1))
    rows = [swarm.row(0, subkey=f"{liar.node_id}:{number}", payload=b"x" * 3500) for number in range(740)]
    assert sum(len(to_bytes(row)) for row in rows) > KEY_BYTES
    serve_flood(liar, rows)
    with pytest.raises(TransportError, match="no peer answered"):
        await reader.read([KEY])
    assert "more rows than one holds" in next(peer.last_error for peer in reader.peers() if peer.node == liar.node_id)


async def test_read__a_key_that_is_full_of_the_longest_subkeys_is_read(swarm: Swarm) -> None:
    """Anybody may fill a key like this at a node that does not know the ledger yet. Its
    response must not pass for a flood."""
    keeper, reader = await swarm.start(), await swarm.start()
    await swarm.met()
    for number in range(1000):
        subkey = f"{swarm.keys[number % 2].node}:{number}:".ljust(256, "\U0001f600")
        row = swarm.row(number % 2, subkey=subkey)
        keeper.storage.put(DHTID.generate(KEY), subkey, wrap(to_bytes(row)), row.expiration / 1000)
    packed = keeper.storage.packed(DHTID.generate(KEY))
    assert packed is not None
    assert len(packed[0]) > REPLY_BYTES
    assert len((await reader.read([KEY]))[KEY]) > 800


async def test_read__answers_that_are_kept_are_bounded_together(swarm: Swarm, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answers, "ROWS_KEPT", 100)
    liar, reader = await swarm.start(), await swarm.start()
    await swarm.met()
    for key in (f"{RUN}/{number}" for number in range(4)):
        serve_flood(liar, [swarm.row(0, record_key=key, subkey=f"{liar.node_id}:{n}") for n in range(60)])
        await reader.read([key])
    assert reader.node is not None
    assert sum(len(rows) for _, rows in reader.node.protocol._answers._seen.values()) == 60


async def test_anchor__rows_are_kept_with_the_runs_operators_too(swarm: Swarm) -> None:
    """Six strangers that keep nothing, and one operator: whoever is nearest, the row is there."""
    for _ in range(6):
        await swarm.start(membership=lambda row: False)
    operator = await swarm.start()
    writer = await swarm.start(client_mode=True)
    writer.anchor([operator.node_id])
    await swarm.met()
    for number in range(8):
        row = swarm.row(7, record_key=f"{RUN}/{number}")
        await writer.publish(row)
        assert [kept for kept, _ in operator.storage.rows.rows(row.key, row.sequence)] == [row]
        assert await writer.read([row.key]) == {row.key: [row]}


@pytest.mark.parametrize("place", [b"\xff" * 40, b"x", b"\0" * 21])
async def test_read_and_publish__a_peer_with_an_impossible_place_ends_nobody__dht_13(
    swarm: Swarm, place: bytes
) -> None:
    """hivemind asserts that places fit in 20 bytes; the error from one bad response
    would end every reader of the key."""
    hostile = await swarm.start()
    reader = await swarm.start()
    await swarm.met()
    row = swarm.row(1)
    await reader.publish(row)
    assert hostile.node is not None
    hostile.node.protocol.node_info.node_id = place
    assert await reader.read([KEY]) == {KEY: [row]}
    await reader.publish(swarm.row(1))
    assert await hostile.read([KEY])  # and its requests are answered like anybody's


async def test_publish__refused_by_peers_membership(swarm: Swarm) -> None:
    await swarm.start(membership=lambda row: False)
    second = await swarm.start()
    await swarm.met()
    with pytest.raises(TransportError, match="refused"):
        await second.publish(swarm.row(1))


async def test_read__more_than_one_reply_holds__dht_09(swarm: Swarm) -> None:
    full = await swarm.start()
    reader = await swarm.start(client_mode=True)
    keys = [f"{RUN}/big/{number}" for number in range(4)]
    for key in keys:
        for number in range(240):
            row = swarm.row(0, record_key=key, subkey=f"{full.node_id}:{number}", payload=b"x" * 3500)
            full.storage.put(DHTID.generate(key), row.subkey, wrap(to_bytes(row)), row.expiration / 1000)
    await swarm.met()
    found = await reader.read(keys)
    assert [len(found[key]) for key in keys] == [240] * 4


async def test_daemon_death__rebuilt_and_published_again__dht_02_dht_04_dht_24(swarm: Swarm, until: Until) -> None:
    first, second = await swarm.start(), await swarm.start()
    await swarm.met()
    publisher = Publisher(swarm.keys[1], second, run=RUN, state=None)
    second.on_rebuilt(publisher.publish_all_again)
    await publisher.publish(kind="node/1", record_key=KEY, subkey=publisher.node, payload=b"{}", lifetime=90)
    assert second.daemon_pid is not None
    os.kill(second.daemon_pid, signal.SIGKILL)
    async with asyncio.timeout(20):
        await until(lambda: second.stats()["rebuilds"] == 1 and second.state == "online")
        assert publisher.unconfirmed == 1
        while publisher.unconfirmed:
            await publisher.publish_due()
            await asyncio.sleep(0.05)
    assert len((await first.read([KEY]))[KEY]) == 1


async def test_daemon_death__calls_fail_in_time__dht_03(swarm: Swarm) -> None:
    node = await swarm.start()
    assert node.daemon_pid is not None
    os.kill(node.daemon_pid, signal.SIGSTOP)  # alive, and silent
    try:
        async with asyncio.timeout(5):
            with pytest.raises(TransportError):
                await node.publish(swarm.row(0))
    finally:
        os.kill(node.daemon_pid, signal.SIGCONT)


async def test_open__port_in_use__boot_12(swarm: Swarm) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        with pytest.raises(StartError, match="held by"):
            await swarm.start(host_maddrs=[f"/ip4/127.0.0.1/tcp/{other.getsockname()[1]}"])


async def test_open__one_data_folder_twice__boot_13(swarm: Swarm) -> None:
    await swarm.start()
    with pytest.raises(StartError, match="data folder"):
        await swarm.start(state_dir=swarm.base / "0")


@pytest.mark.parametrize("data", [b"", b"garbage"])
async def test_open__bad_identity__boot_14(swarm: Swarm, tmp_path: Path, data: bytes) -> None:
    (tmp_path / "bad").write_bytes(data)
    with pytest.raises(IdentityError, match="not an ed25519 key"):
        await swarm.start(key_path=tmp_path / "bad")
    with pytest.raises(IdentityError, match="no key file"):
        await swarm.start(key_path=tmp_path / "missing")


def test_sigkill__leaves_no_daemon_and_no_socket__dht_05(tmp_path: Path) -> None:
    script = f"""
        import asyncio, sys
        from pathlib import Path
        from dht.directory import HivemindDirectory
        from dht.identity import NodeKey

        async def main():
            folder = Path({str(tmp_path)!r})
            NodeKey.generate().save(folder / "key")
            async with HivemindDirectory.open(
                key_path=folder / "key", host_maddrs=["/ip4/127.0.0.1/tcp/0"], initial_peers=[], run="r",
                limits={{}}, lifetimes={{}}, state_dir=folder,
            ) as directory:
                assert "torch" not in sys.modules
                print(directory.daemon_pid, flush=True)
                await asyncio.Event().wait()

        asyncio.run(main())
    """
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "ignore"}
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script)], stdout=subprocess.PIPE, text=True, env=environment
    ) as node:
        assert node.stdout is not None
        daemon = next(int(line) for line in iter(node.stdout.readline, "") if line.strip().isdigit())
        watch = os.pidfd_open(daemon)
        assert sockets_of(node.pid)
        node.kill()
        ended, _, _ = select.select([watch], [], [], 10)
        os.close(watch)
    assert ended, "p2pd outlived its node"
    remove_stale_sockets()
    assert not sockets_of(node.pid)


async def test_read_and_publish__a_silent_peer_is_not_waited_for__dht_26(swarm: Swarm) -> None:
    silent, second, client = await swarm.start(), await swarm.start(), await swarm.start(client_mode=True)
    await swarm.met()
    row = swarm.row(1)
    await second.publish(row)
    pid = silent.daemon_pid
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    try:
        async with asyncio.timeout(4):
            assert await client.read([KEY]) == {KEY: [row]}
        async with asyncio.timeout(4):
            await client.publish(swarm.row(2))
    finally:
        os.kill(pid, signal.SIGCONT)


async def test_hand_over__a_late_node_gets_the_rows_it_should_keep__dht_27(swarm: Swarm, until: Until) -> None:
    first, second = await swarm.start(), await swarm.start()
    await swarm.met()
    await first.publish(swarm.row(0))
    await second.publish(swarm.row(1))
    late = await swarm.start()
    await until(lambda: late.stats()["rows"] == 2)


async def test_hand_over__thousands_of_keys_hold_up_nothing_else(
    swarm: Swarm, until: Until, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ids cost nothing, and each new one makes us examine every key we hold."""
    node = await swarm.start()
    for number in range(300):
        row = swarm.row(0, record_key=f"{RUN}/{number}")
        node.storage.put(DHTID.generate(row.key), row.subkey, wrap(to_bytes(row)), row.expiration / 1000)
    assert node.node is not None
    async with calls_between_turns(monkeypatch, hand_over.HandOver, "_is_ours_to_give") as counts:
        late = await swarm.start()
        await until(lambda: late.stats()["rows"] == 300)
    assert 1 < max(counts) <= ROWS_BETWEEN_YIELDS


async def test_hand_over__of_a_flood_of_ids_few_wait_for_their_rows(swarm: Swarm) -> None:
    node = await swarm.start()
    assert node.node is not None
    protocol = node.node.protocol
    async with protocol.hand_over._giving:
        for _ in range(100):
            peer = PeerID.from_base58(NodeKey.generate().node)
            protocol.start(protocol.hand_over.give(place_of_peer(peer), peer))
        await asyncio.sleep(0)
        assert protocol.hand_over._waiting == MOST_TO_GIVE


async def test_close__nothing_is_left(swarm: Swarm) -> None:
    node = await swarm.start()
    pid = node.daemon_pid
    assert pid is not None
    await swarm.stack.aclose()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    assert node.state == "stopped"
    assert not sockets_of(os.getpid())
    assert not (swarm.base / "0" / "node.lock").exists()
    with pytest.raises(TransportError, match="stopped"):
        await node.read([KEY])


async def test_rpc_find__more_keys_than_one_request_holds(swarm: Swarm) -> None:
    await swarm.start()
    client = await swarm.start(client_mode=True)
    await swarm.met()
    keys = [f"{RUN}/{number}" for number in range(150)]
    for number in (0, 149):
        await client.publish(swarm.row(1, record_key=keys[number]))
    found = await client.read(keys)
    assert [number for number, key in enumerate(keys) if found[key]] == [0, 149]


async def test_daemon_death__a_lost_connection_to_a_living_daemon_counts__dht_06(swarm: Swarm, until: Until) -> None:
    first, second = await swarm.start(), await swarm.start()
    await swarm.met()
    assert second.node is not None
    second.node.p2p._client.control._read_task.cancel()  # what a fault in hivemind's reader comes to
    await until(lambda: second.stats()["rebuilds"] == 1)
    await swarm.met()
    await second.publish(swarm.row(1))
    assert len((await first.read([KEY]))[KEY]) == 1


async def test_metrics_url__the_daemon_tells_its_own(swarm: Swarm) -> None:
    node = await swarm.start()
    async with httpx.AsyncClient(trust_env=False) as http:
        told = await read_daemon_metrics(node.metrics_url, http)
    assert "\nlibp2p_rcmgr_connections{" in told
    assert "\nprocess_" not in told
