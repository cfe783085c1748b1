"""News is delivered once and at once; announced shards are counted; a relay that
raises false alarms is asked rarely."""

from __future__ import annotations

import asyncio
import time
from functools import partial
from pathlib import Path

import pytest
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from roles.relay import RelaySettings
from roles.shardcast.manifest import manifest_digest
from roles.shardcast.subscription import Offered
from tests.unit.roles.shardcast.network import (
    TRAINER,
    WORKER,
    make_checkpoint,
    make_envelope,
    offering,
    running_network,
    wait_until,
)


async def test_watch__told_once_of_each_checkpoint_whichever_relay_says_it(tmp_path: Path) -> None:
    folder, told = make_checkpoint(tmp_path / "c"), list[Offered]()
    first, second = make_envelope(folder), make_envelope(folder, step=2)
    async with running_network(tmp_path) as network, asyncio.TaskGroup() as group:
        trainer = network.client(TRAINER)
        await trainer.put_checkpoint(first, folder)
        watching = group.create_task(network.client(WORKER).watch(told.append))
        await wait_until(lambda: len(told) == 1)
        await trainer.put_checkpoint(second, folder)
        await wait_until(lambda: len(told) == 2)
        watching.cancel()
    assert [(offer.manifest, offer.step) for offer in told] == [
        (manifest_digest(first), 1),
        (manifest_digest(second), 2),
    ]


async def test_watch__relay_counts_what_its_readers_hold(tmp_path: Path) -> None:
    folder = make_checkpoint(tmp_path / "c")
    digest = manifest_digest(make_envelope(folder))
    async with running_network(tmp_path, relays=1) as network, asyncio.TaskGroup() as group:
        await network.client(TRAINER).put_checkpoint(make_envelope(folder), folder)
        watching = [
            group.create_task(network.client(WORKER).watch(lambda offer: None, held=partial(str, held)))
            for held in (digest, digest, "", "e" * 64)
        ]

        async def subscribers() -> object:
            return (await network.http.get(f"{network.infos[0].url}/status")).json()["subscribers"]

        async with asyncio.timeout(10):
            while await subscribers() != {digest: 2, "none": 1, "other": 1}:  # noqa: ASYNC110 - the relay says it
                await asyncio.sleep(0.02)
        for task in watching:
            task.cancel()


async def test_watch__relay_that_answers_at_once_with_nothing_new_is_asked_rarely(tmp_path: Path) -> None:
    told, answers = list[Offered](), list[float]()
    async with running_network(tmp_path, relays=0) as network, asyncio.TaskGroup() as group:
        await network.add_relay(partial(offering, manifest="d" * 64, answered=lambda: answers.append(time.monotonic())))
        watching = group.create_task(network.client(WORKER).watch(told.append))
        await wait_until(lambda: len(answers) == 5)
        watching.cancel()
    assert len(told) == 1
    assert answers[4] - answers[0] > 0.05 + 0.1 + 0.2 + 0.4


@pytest.mark.parametrize("step", ["1e999", "-1", "1.5", '"7"', "true", "null", "9" * 400, "[" * 5000])
async def test_watch__relay_that_says_no_number_ends_nobody(tmp_path: Path, step: str) -> None:
    said = f'{{"token": "a", "manifests": [{{"manifest": "{"d" * 64}", "term": 1, "step": {step}}}]}}'.encode()
    told, asked = list[Offered](), asyncio.Event()

    def lying(app: ASGIApp) -> ASGIApp:
        async def lie(scope: Scope, receive: Receive, send: Send) -> None:
            await Response(said, media_type="application/json")(scope, receive, send)
            asked.set()

        return lie

    async with running_network(tmp_path) as network, asyncio.TaskGroup() as group:
        await network.add_relay(lying)
        tasks = [*network.start(group), group.create_task(network.client(WORKER).watch(told.append))]
        async with asyncio.timeout(20):
            for _ in range(4):
                asked.clear()
                await asked.wait()
        assert not [task for task in tasks if task.done()]
        for task in tasks:
            task.cancel()
    assert not told


async def test_fetch_checkpoint__asked_before_any_relay_has_the_manifest(tmp_path: Path) -> None:
    folder = make_checkpoint(tmp_path / "c")
    envelope = make_envelope(folder)
    async with running_network(tmp_path) as network, asyncio.TaskGroup() as group:
        reader = network.client(WORKER, news=5.0)
        fetching = group.create_task(reader.fetch_checkpoint(manifest_digest(envelope), tmp_path / "into"))
        await wait_until(lambda: sum(relay.counters.requests[404] for relay in network.relays) >= 2)
        await network.client(TRAINER).put_checkpoint(envelope, folder)
        fetched = await fetching
    assert (fetched / "config.json").read_bytes() == (folder / "config.json").read_bytes()


async def test_read_news__archive_of_many_checkpoints_lists_the_newest(tmp_path: Path) -> None:
    async with running_network(tmp_path, relays=0) as network:
        relay = await network.add_relay(settings=RelaySettings(archive=True))
        folder = make_checkpoint(tmp_path / "c", size=1000)
        for step in range(70):
            await relay.shelf.catalogue.add(relay.shelf.catalogue.check(make_envelope(folder, step=step)))
        news = await network.client().link.read_news(network.infos[0])
        assert [offer.step for offer in news.offers] == list(range(69, 5, -1))
