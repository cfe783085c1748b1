"""Checkpoints by deltas, over real relays on loopback."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest
import structlog
from starlette.types import ASGIApp, Receive, Scope, Send

from dht.envelope import Envelope
from roles.shardcast.assembly import Assembly
from roles.shardcast.chains import LONGEST_CHAIN, find_chain, leading_on
from roles.shardcast.manifest import check_manifest, manifest_digest
from roles.shardcast.replies import DeltaHint, RelayInfo
from roles.shardcast.shards import read_shard
from tests.unit.roles.shardcast.line import Line, fetches, is_same, make_line, publish, pulling
from tests.unit.roles.shardcast.network import RUN, TRAINER, running_network, wait_until

SOMEBODY = RelayInfo("somebody", "http://127.0.0.1:1")


@pytest.fixture
def line(tmp_path: Path) -> Line:
    return make_line(tmp_path / "line", steps=4)


async def test_fetch_checkpoint__by_delta_from_the_one_held(tmp_path: Path, line: Line) -> None:
    async with running_network(tmp_path) as network, pulling(network):
        client, into = network.client(), tmp_path / "into"
        await publish(network, line, [0])
        await client.fetch_checkpoint(line.digest(0), into)
        await network.client(TRAINER).put_checkpoint(line.rows[1], line.folders[1], delta=line.delta(1), whole=False)
        with structlog.testing.capture_logs() as log:
            fetched = await client.fetch_checkpoint(line.digest(1), into)
        assert is_same(fetched, line.folders[1])
        assert fetches(log) == [(False, True)]
        assert sum(client.received(line.digest(1)).values()) == (line.root / "delta-0-1" / "delta").stat().st_size


async def test_fetch_checkpoint__node_that_missed_two_follows_the_chain(tmp_path: Path, line: Line) -> None:
    async with running_network(tmp_path) as network, pulling(network):
        await publish(network, line, [0, 1, 2, 3])
        shutil.copytree(line.folders[0], tmp_path / "into" / line.digest(0))
        with structlog.testing.capture_logs() as log:
            fetched = await network.client().fetch_checkpoint(line.digest(3), tmp_path / "into")
        assert is_same(fetched, line.folders[3])
        assert [path.name for path in (tmp_path / "into" / ".deltas").iterdir()] == []
        assert len(list((tmp_path / "into").iterdir())) == 3
        assert fetches(log) == [(False, True)]


async def test_fetch_checkpoint__node_that_missed_more_than_relays_keep_follows_the_chain(tmp_path: Path) -> None:
    line = make_line(tmp_path / "line", steps=8)
    async with running_network(tmp_path) as network, pulling(network):
        await publish(network, line, range(8))
        assert network.relays[0].shelf.catalogue.find(line.digest(2)) is None
        shutil.copytree(line.folders[0], tmp_path / "into" / line.digest(0))
        with structlog.testing.capture_logs() as log:
            fetched = await network.client().fetch_checkpoint(line.digest(7), tmp_path / "into")
        assert is_same(fetched, line.folders[7])
        assert fetches(log) == [(False, True)]


async def test_fetch_checkpoint__relay_that_knows_what_is_held_has_told_the_way(tmp_path: Path, line: Line) -> None:
    asked: list[str] = []

    def overheard(app: ASGIApp) -> ASGIApp:
        async def listening(scope: Scope, receive: Receive, send: Send) -> None:
            asked.append(scope["path"])
            await app(scope, receive, send)

        return listening

    async with running_network(tmp_path, relays=1) as network:
        await network.add_relay(overheard)
        del network.relays[0], network.infos[0]
        async with pulling(network), asyncio.TaskGroup() as group:
            await publish(network, line, [0, 1, 2, 3])
            client, told = network.client(), asyncio.Event()
            shutil.copytree(line.folders[1], tmp_path / "into" / line.digest(1))
            watching = group.create_task(client.watch(lambda offer: told.set(), held=lambda: line.digest(1)))
            await told.wait()
            asked.clear()
            with structlog.testing.capture_logs() as log:
                fetched = await client.fetch_checkpoint(line.digest(3), tmp_path / "into")
            watching.cancel()
        assert is_same(fetched, line.folders[3])
        assert fetches(log) == [(False, True)]
        assert "/deltas" not in asked


async def test_fetch_checkpoint__relay_that_made_up_many_deltas_hides_no_other(tmp_path: Path, line: Line) -> None:
    async with running_network(tmp_path) as network, pulling(network):
        await publish(network, line, [0, 1])
        client = network.client()
        shutil.copytree(line.folders[0], tmp_path / "into" / line.digest(0))
        liar = network.infos[0]
        client._shortcuts.hear(
            DeltaHint(f"{number:064x}", line.digest(0), line.digest(1), 1, liar) for number in range(1000)
        )
        with structlog.testing.capture_logs() as log:
            fetched = await client.fetch_checkpoint(line.digest(1), tmp_path / "into")
        assert is_same(fetched, line.folders[1])
        assert fetches(log) == [(False, True)]


async def test_fetch_checkpoint__late_joiner_gets_shards_that_relays_rebuilt__wgt_21(
    tmp_path: Path, line: Line
) -> None:
    async with running_network(tmp_path) as network, pulling(network):
        await publish(network, line, [0])
        received = sum(relay.counters.bytes_received for relay in network.relays)
        await publish(network, line, [0, 1])
        sent = sum(relay.counters.bytes_received for relay in network.relays) - received
        assert sent < 10_000
        with structlog.testing.capture_logs() as log:
            fetched = await network.client().fetch_checkpoint(line.digest(1), tmp_path / "into")
        assert is_same(fetched, line.folders[1])
        assert fetches(log) == [(True, False)]


async def test_publish__anchor_is_sent_whole(tmp_path: Path, line: Line) -> None:
    async with running_network(tmp_path) as network:  # no relay pulls or rebuilds
        await publish(network, line, [0, 1], whole=True)
        assert all(relay.counters.bytes_received > 2 * 400_000 for relay in network.relays)


async def test_publish__relay_without_the_base_is_sent_the_shards(tmp_path: Path, line: Line) -> None:
    async with running_network(tmp_path, relays=1) as network, pulling(network):
        delta = line.delta(1)
        await network.client(TRAINER).put_checkpoint(line.rows[1], line.folders[1], delta=delta, whole=False)
        assert network.relays[0].shelf.held(next(iter(network.relays[0].shelf.catalogue))) == 7


async def test_run__relay_that_is_sent_nothing_rebuilds_too(tmp_path: Path, line: Line) -> None:
    async with running_network(tmp_path, relays=3) as network, pulling(network):
        await publish(network, line, [0])
        await wait_until(lambda: all(len(r.shelf.store) >= 7 for r in network.relays), seconds=40)
        pulled = [relay.counters.bytes_pulled for relay in network.relays]
        await publish(network, line, [0, 1])
        await wait_until(lambda: all(len(r.shelf.catalogue) == 2 for r in network.relays), seconds=40)
        newest = [next(iter(relay.shelf.catalogue)) for relay in network.relays]
        await wait_until(
            lambda: not any(r.shelf.missing(n) for r, n in zip(network.relays, newest, strict=True)), seconds=40
        )
        now = [relay.counters.bytes_pulled for relay in network.relays]
        assert all(after - before < 10_000 for after, before in zip(now, pulled, strict=True))


async def test_fetch_checkpoint__goes_on_after_a_kill_wherever_it_was__wgt_23(tmp_path: Path, line: Line) -> None:
    async with running_network(tmp_path) as network, pulling(network):
        await publish(network, line, [0, 1, 2])
        into = tmp_path / "into"
        shutil.copytree(line.folders[0], into / line.digest(0))
        half = Assembly(into, line.rows[2], check_manifest(line.rows[2], run=RUN, trainers={TRAINER.node}))
        assert half.open()
        for index in (0, 4):
            async with half.writer(index) as sink:
                for block in read_shard(line.folders[2], half.layout, index):
                    sink.take(block)
                sink.commit()
        half.close()
        row, folder = line.delta(1)
        shutil.copytree(folder, half.scratch / manifest_digest(row))  # fetched, not applied
        (half.scratch / f".partial-{line.digest(1)}" / "files").mkdir(parents=True)  # on the way, half rebuilt
        (half.scratch / f".partial-{line.digest(1)}" / "journal").write_text("0\n1\n")
        with structlog.testing.capture_logs() as log:
            fetched = await network.client().fetch_checkpoint(line.digest(2), into)
        assert is_same(fetched, line.folders[2])
        assert fetches(log) == [(False, True)]
        assert {path.name for path in into.iterdir()} == {line.digest(0), line.digest(2), ".deltas"}
        assert not list((into / ".deltas").iterdir())


def corrupted_delta(line: Line) -> tuple[Envelope, Path]:
    """From checkpoint 0 to 1, with one bit of it changed before it was signed."""
    data = bytearray((line.delta(1)[1] / "delta").read_bytes())
    data[len(data) // 2] ^= 1
    return line.delta(1, file=bytes(data))


async def test_take__corrupted_delta_is_refused_and_the_shards_are_fetched(tmp_path: Path, line: Line) -> None:
    async with running_network(tmp_path) as network, pulling(network):
        await publish(network, line, [0])
        into = tmp_path / "into"
        client = network.client()
        await client.fetch_checkpoint(line.digest(0), into)
        with structlog.testing.capture_logs() as log:
            bad = corrupted_delta(line)
            await network.client(TRAINER).put_checkpoint(line.rows[1], line.folders[1], delta=bad, whole=False)
            fetched = await client.fetch_checkpoint(line.digest(1), into)
        assert is_same(fetched, line.folders[1])
        assert fetches(log)[0][0]
        blamed = [event for event in log if event["event"] == "delta.refused"]
        assert {event["trainer"] for event in blamed} == {TRAINER.node}
        assert len(blamed) >= 3  # both relays and the client
        assert (into / line.digest(0)).exists()
        assert not list((into / ".deltas").rglob("delta"))


async def test_fetch_checkpoint__delta_that_was_refused_is_not_tried_again(tmp_path: Path, line: Line) -> None:
    async with running_network(tmp_path) as network:  # no relay pulls, and finds out for itself
        await publish(network, line, [0])
        client, into = network.client(), tmp_path / "into"
        await client.fetch_checkpoint(line.digest(0), into)
        bad = corrupted_delta(line)
        await network.client(TRAINER).put_checkpoint(line.rows[1], line.folders[1], delta=bad)
        with structlog.testing.capture_logs() as log:
            shutil.rmtree(await client.fetch_checkpoint(line.digest(1), into))
            await client.fetch_checkpoint(line.digest(1), into)
        assert [event["delta"] for event in log if event["event"] == "delta.refused"] == [manifest_digest(bad[0])]
        assert fetches(log) == [(True, True), (True, False)]


async def test_take__damaged_base_goes_and_the_delta_stands(tmp_path: Path, line: Line) -> None:
    async with running_network(tmp_path) as network, pulling(network):
        await publish(network, line, [0])
        into, client = tmp_path / "into", network.client()
        base = await client.fetch_checkpoint(line.digest(0), into)
        data = bytearray((base / "model.safetensors").read_bytes())
        data[5000] ^= 1
        (base / "model.safetensors").write_bytes(data)
        await publish(network, line, [0, 1])
        with structlog.testing.capture_logs() as log:
            fetched = await client.fetch_checkpoint(line.digest(1), into)
        assert is_same(fetched, line.folders[1])
        assert not base.exists()
        assert [e["event"] for e in log if e["log_level"] == "warning"] == ["checkpoint.damaged"]


def hint(base: str, target: str, size: int) -> DeltaHint:
    return DeltaHint(f"{base}{target}", base, target, size, SOMEBODY)


HINTS = [hint("a", "b", 5), hint("b", "c", 5), hint("a", "c", 12), hint("c", "d", 5), hint("d", "c", 1)]


@pytest.mark.parametrize(
    ("held", "target", "below", "chain"),
    [
        ("a", "c", 100, ["ab", "bc"]),
        ("a", "d", 100, ["ab", "bc", "cd"]),
        ("ab", "d", 100, ["bc", "cd"]),
        ("a", "d", 15, []),
        ("x", "d", 100, []),
        ("a", "a", 100, []),
    ],
)
def test_find_chain__cheapest(held: str, target: str, below: float, chain: list[str]) -> None:
    assert [one.delta for one in find_chain(HINTS, target, set(held), below=below)] == chain


def test_find_chain__not_too_long() -> None:
    hints = [hint(a, b, 1) for a, b in zip("abcdefghi", "bcdefghij", strict=True)]
    assert find_chain(hints, "j", {"a"}, below=100) == []
    assert len(find_chain(hints, "j", {"b"}, below=100)) == LONGEST_CHAIN


def test_leading_on__what_a_holder_can_use() -> None:
    assert [one.delta for one in leading_on(HINTS, "b")] == ["bc", "cd", "dc"]
    assert leading_on(HINTS, "x") == []
