"""A relay that pulls the checkpoints it hears of."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

from starlette.types import ASGIApp, Receive, Scope, Send

from dht.encoding import encode
from dht.envelope import Envelope, seal
from dht.errors import TransportError
from dht.identity import NodeKey
from roles.messages import CheckpointRow, checkpoints_key, place_of, subkey_for
from roles.relay import RelaySettings
from roles.relay.pulling import RETRY_PULL
from roles.shardcast.grants import hint_of
from roles.shardcast.manifest import manifest_digest
from roles.shardcast.replies import RelayInfo
from roles.shardcast.shards import read_shard
from tests.unit.roles.shardcast.line import make_line
from tests.unit.roles.shardcast.network import (
    RUN,
    TRAINER,
    WORKER,
    Network,
    make_checkpoint,
    make_envelope,
    offering,
    running_network,
    spoiled,
    wait_until,
)


def make_row(manifest: str, *, step: int = 1, key: NodeKey = TRAINER, relays: Sequence[str] = ()) -> Envelope:
    """A checkpoint row as the directory gives it."""
    message = CheckpointRow(term=1, step=step, manifest=manifest)
    return seal(
        key,
        run=RUN,
        kind="checkpoint/1",
        record_key=place_of(message, run=RUN, buckets=1)[0],
        subkey=subkey_for(message, run=RUN, signer=key.node, buckets=1),
        sequence=1,
        expiration=2**50,
        payload=encode(message),
        hint=hint_of(relays),
    )


class Rows:
    """A directory's reader over a list."""

    def __init__(self, *rows: Envelope) -> None:
        self.rows = list(rows)
        self.reads = 0
        self.is_down = False

    async def __call__(self, keys: Sequence[str]) -> Mapping[str, Sequence[Envelope]]:
        self.reads += 1
        if self.is_down:
            raise TransportError("no peer answers")
        return {checkpoints_key(RUN): self.rows} if checkpoints_key(RUN) in keys else {}


@asynccontextmanager
async def pulling(network: Network) -> AsyncIterator[None]:
    """Let every relay pull within the block."""
    async with asyncio.TaskGroup() as group:
        tasks = network.start(group)
        yield
        for task in tasks:
            task.cancel()


def held(network: Network, relay: int, digest: str) -> int:
    shelf = network.relays[relay].shelf
    kept = shelf.catalogue.find(digest)
    return shelf.held(kept) if kept else 0


async def test_run__pulls_what_a_row_names(tmp_path: Path) -> None:
    folder = make_checkpoint(tmp_path / "c")
    digest = manifest_digest(make_envelope(folder))
    async with running_network(tmp_path, relays=1) as network:
        holders = await network.client(TRAINER).put_checkpoint(make_envelope(folder), folder)
        await network.add_relay(read=Rows(make_row(digest, relays=holders)))
        async with pulling(network):
            await wait_until(lambda: held(network, 1, digest) == 5)
        network.infos.pop(0)
        await network.client().fetch_checkpoint(digest, tmp_path / "into")


async def test_run__relay_that_only_got_the_manifest_pulls_the_shards(tmp_path: Path) -> None:
    folder = make_checkpoint(tmp_path / "c")
    digest = manifest_digest(make_envelope(folder))
    async with running_network(tmp_path, relays=3) as network, pulling(network):
        await network.client(TRAINER).put_checkpoint(make_envelope(folder), folder)
        await wait_until(lambda: [held(network, relay, digest) for relay in range(3)] == [5, 5, 5])


async def test_run__row_of_a_checkpoint_whose_base_it_holds_is_pulled_as_a_delta(tmp_path: Path) -> None:
    line, rows = make_line(tmp_path / "line", steps=2), Rows()
    async with running_network(tmp_path, relays=1) as network:
        holder = network.infos[0]
        trainer = network.client(TRAINER, relays=lambda: (holder,))  # the other one is never offered anything
        await network.add_relay(read=rows)
        async with pulling(network):
            await trainer.put_checkpoint(line.rows[0], line.folders[0])
            rows.rows.append(make_row(line.digest(0), step=0, relays=[holder.node]))
            await wait_until(lambda: held(network, 1, line.digest(0)) == 7)
            pulled = network.relays[1].counters.bytes_pulled
            await trainer.put_checkpoint(line.rows[1], line.folders[1], delta=line.delta(1), whole=False)
            rows.rows.append(make_row(line.digest(1), relays=[holder.node]))
            await wait_until(lambda: held(network, 1, line.digest(1)) == 7)
        assert network.relays[1].counters.bytes_pulled - pulled == (line.root / "delta-0-1/delta").stat().st_size


async def test_run__relay_that_missed_some_rebuilds_the_newest_by_the_chain(tmp_path: Path) -> None:
    line = make_line(tmp_path / "line", steps=4)
    async with running_network(tmp_path) as network:
        there, away = network.infos
        for link in (lambda: (there,), lambda: (away,)):
            await network.client(TRAINER, relays=link).put_checkpoint(line.rows[0], line.folders[0])
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(network.relays[0].run())]
            trainer = network.client(TRAINER, relays=lambda: (there,))
            for step in (1, 2, 3):
                await trainer.put_checkpoint(line.rows[step], line.folders[step], delta=line.delta(step), whole=False)
            tasks.append(group.create_task(network.relays[1].run()))
            await wait_until(lambda: held(network, 1, line.digest(3)) == 7)
            for task in tasks:
                task.cancel()
        deltas = [(line.root / f"delta-{step - 1}-{step}/delta").stat().st_size for step in (1, 2, 3)]
        assert network.relays[1].counters.bytes_pulled == sum(deltas)


async def test_run__goes_on_rebuilding_after_a_kill(tmp_path: Path) -> None:
    line = make_line(tmp_path / "line", steps=2)
    row, folder = line.delta(1)
    async with running_network(tmp_path, relays=1) as network:
        info, trainer = network.infos[0], network.client(TRAINER)
        await trainer.put_checkpoint(line.rows[0], line.folders[0])
        for envelope in (row, line.rows[1]):
            await trainer.link.send_manifest(info, envelope)
        catalogue = network.relays[0].shelf.catalogue
        delta, kept = catalogue.parcel(manifest_digest(row)), catalogue.find(line.digest(1))
        assert delta is not None
        assert kept is not None
        for parcel, source in ((delta, folder), (kept, line.folders[1])):
            for index in range(4):  # all of the delta, and half of what was rebuilt before the kill
                data = b"".join(read_shard(source, parcel.layout, index))
                await trainer.link.send(info, parcel.layout.manifest.shards[index], len(data), partial(blocks_of, data))
        network.infos.clear()
        await network.add_relay(root=tmp_path / "relay0")  # on the same folder; nobody to ask
        async with pulling(network):
            await wait_until(lambda: held(network, 1, line.digest(1)) == 7)


async def blocks_of(data: bytes) -> AsyncIterator[bytes]:
    yield data


async def test_run__serves_shards_while_it_pulls_wgt_02(tmp_path: Path) -> None:
    folder = make_checkpoint(tmp_path / "c")
    envelope = make_envelope(folder)
    async with running_network(tmp_path, relays=2) as network, pulling(network):
        trainer = network.client(TRAINER).link
        for info in network.infos:
            await trainer.send_manifest(info, envelope)
        manifest = next(iter(network.relays[0].shelf.catalogue)).manifest
        first = (folder / "config.json").read_bytes()[:65_536]

        async def content() -> AsyncIterator[bytes]:
            yield first

        await trainer.send(network.infos[0], manifest.shards[0], len(first), content)
        await wait_until(lambda: held(network, 1, manifest_digest(envelope)) == 1)
        second = network.client(relays=lambda: (network.infos[1],))
        assert await second.get(manifest.shards[0], limit=65_536) == first
        await wait_until(lambda: network.relays[0].counters.bytes_served > 0)


async def test_run__source_that_lies_never_served_on_wgt_01(tmp_path: Path) -> None:
    folder = make_checkpoint(tmp_path / "c")
    digest = manifest_digest(make_envelope(folder))

    def flip_shards(block: bytes) -> bytes:
        return block if len(block) < 10_000 else bytes([block[0] ^ 1]) + block[1:]

    async with running_network(tmp_path, relays=0) as network:
        await network.add_relay(partial(spoiled, spoil=flip_shards))
        holders = await network.client(TRAINER).put_checkpoint(make_envelope(folder), folder)
        await network.add_relay(read=Rows(make_row(digest, relays=holders)))
        async with pulling(network):
            liar_link = network.relays[1]._puller._link
            assert liar_link is not None
            await wait_until(lambda: liar_link.choice.is_banned(holders[0]))
        assert held(network, 1, digest) == 0


async def test_run__keeps_and_serves_its_own_when_sources_fail_wgt_11(tmp_path: Path) -> None:
    old, new = make_checkpoint(tmp_path / "1", seed=1), make_checkpoint(tmp_path / "2", seed=2)
    rows = Rows()
    async with running_network(tmp_path, relays=0) as network:
        await network.add_relay(read=rows)
        await network.client(TRAINER).put_checkpoint(make_envelope(old), old)
        ghost = RelayInfo(WORKER.node, "http://127.0.0.1:9")
        network.infos.append(ghost)
        rows.rows = [make_row(manifest_digest(make_envelope(new, step=2)), step=2, relays=[ghost.node])]
        async with pulling(network):
            await wait_until(lambda: rows.reads > 2)
            rows.is_down = True
            before = rows.reads
            await wait_until(lambda: rows.reads > before + 2)
        network.infos.pop()
        await network.client().fetch_checkpoint(manifest_digest(make_envelope(old)), tmp_path / "into")


async def test_run__manifest_it_asked_for_in_vain_and_was_given_then_is_pulled_at_once(tmp_path: Path) -> None:
    """A relay hears of each new checkpoint by its row while the trainer is still sending it the manifest."""
    folder = make_checkpoint(tmp_path / "c")
    envelope = make_envelope(folder)
    digest = manifest_digest(envelope)
    async with running_network(tmp_path, relays=1) as network:
        hearing = await network.add_relay(read=Rows(make_row(digest)))
        async with pulling(network):
            await wait_until(lambda: network.relays[0].counters.requests[404] > 0)
            await network.client(TRAINER).link.send_manifest(network.infos[1], envelope)
            await network.client(TRAINER, relays=lambda: (network.infos[0],)).put_checkpoint(envelope, folder)
            await wait_until(lambda: held(network, 1, digest) == 5, seconds=RETRY_PULL - 0.5)
    assert hearing.counters.bytes_pulled == 300_000


async def test_run__row_of_a_stranger_is_not_followed(tmp_path: Path) -> None:
    digest = manifest_digest(make_envelope(make_checkpoint(tmp_path / "c")))
    rows = Rows(make_row(digest, key=WORKER))
    async with running_network(tmp_path, relays=1) as network:
        await network.add_relay(read=rows)
        async with pulling(network):
            await wait_until(lambda: rows.reads > 3)
        assert network.relays[0].counters.requests[404] == 0  # nobody asked for it


async def test_run__row_older_than_all_that_is_kept_is_not_asked_for(tmp_path: Path) -> None:
    asked = list[str]()

    def noting(app: ASGIApp) -> ASGIApp:
        async def noted(scope: Scope, receive: Receive, send: Send) -> None:
            asked.append(scope["path"])
            await app(scope, receive, send)

        return noted

    folder, rows = (
        make_checkpoint(tmp_path / "c"),
        Rows(*(make_row(f"{step:064x}", step=step) for step in range(1, 30))),
    )
    async with running_network(tmp_path, relays=0) as network:
        await network.add_relay(noting)
        relay = await network.add_relay(read=rows, settings=RelaySettings(poll=0.05, kept=1))
        await relay.shelf.add(relay.shelf.catalogue.check(make_envelope(folder, step=30)))
        async with pulling(network):
            await wait_until(lambda: rows.reads > 3)
        assert not [path for path in asked if path.startswith("/manifests/00000")]


async def test_run__hears_of_a_checkpoint_from_another_relay_without_any_row(tmp_path: Path) -> None:
    folder = make_checkpoint(tmp_path / "c")
    envelope = make_envelope(folder)
    async with running_network(tmp_path, relays=1) as network:
        second = await network.add_relay()
        async with pulling(network):
            trainer = network.client(TRAINER, relays=lambda: (network.infos[0],))
            await trainer.put_checkpoint(envelope, folder)
            kept = network.relays[0].shelf.catalogue.find(manifest_digest(envelope))
            assert kept is not None
            await wait_until(lambda: kept.digest in second.shelf.catalogue and not second.shelf.missing(kept))


async def test_run__relay_that_offers_what_it_does_not_have_costs_one_question(tmp_path: Path) -> None:
    made_up = "d" * 64

    async with running_network(tmp_path, relays=0) as network:
        liar = await network.add_relay(partial(offering, manifest=made_up))
        honest = await network.add_relay()
        async with pulling(network):
            await wait_until(lambda: liar.counters.requests[404] > 0)
        assert len(honest.shelf.catalogue) == 0
        assert liar.counters.requests[404] == 1


async def test_run__resumes_after_a_restart_with_the_missing_shards_only(tmp_path: Path) -> None:
    folder = make_checkpoint(tmp_path / "c")
    envelope = make_envelope(folder)
    digest = manifest_digest(envelope)
    async with running_network(tmp_path, relays=1) as network:
        await network.client(TRAINER).put_checkpoint(envelope, folder)
        half = await network.add_relay(root=tmp_path / "half")
        await half.shelf.add(half.shelf.catalogue.check(envelope))
        await half.shelf.store.put((folder / "config.json").read_bytes()[:65_536])
        await network.add_relay(root=tmp_path / "half")  # as after a kill: the same folder
        async with asyncio.TaskGroup() as group:
            task = group.create_task(network.relays[2].run())
            await wait_until(lambda: held(network, 2, digest) == 5)
            task.cancel()
        assert network.relays[2].counters.bytes_pulled == 300_000 - 65_536
