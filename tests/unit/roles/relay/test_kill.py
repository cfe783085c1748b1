"""A relay killed in the middle of an upload, and restarted on its folder."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx

from roles.shardcast.manifest import manifest_digest
from roles.shardcast.replies import RelayInfo
from tests.unit.roles.shardcast.network import TRAINER, WORKER, make_checkpoint, make_envelope, running_network

ROOT = Path(__file__).parents[4]


@asynccontextmanager
async def relay_process(folder: Path, port: int = 0) -> AsyncIterator[tuple[asyncio.subprocess.Process, str]]:
    """The process and its URL; killed at the end if still alive."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "tests.unit.roles.relay.relay_process",
        str(folder),
        str(port),
        cwd=ROOT,
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    try:
        async with asyncio.timeout(30):
            yield process, (await process.stdout.readline()).decode().strip()
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


def sent(folder: Path) -> int:
    """Shards that are in place."""
    return sum(path.is_file() for path in (folder / "blobs").glob("*/*"))


async def test_publish__relay_killed_midway_and_started_again(tmp_path: Path) -> None:
    source = make_checkpoint(tmp_path / "source", size=3_000_000)
    envelope, folder = make_envelope(source), tmp_path / "relay"
    async with running_network(tmp_path, relays=0) as network, asyncio.TaskGroup() as group:
        async with relay_process(folder) as (process, url):
            network.infos.append(RelayInfo(WORKER.node, url))
            publishing = group.create_task(network.client(TRAINER).put_checkpoint(envelope, source))
            while sent(folder) < 8:  # noqa: ASYNC110 - another process's disk
                await asyncio.sleep(0.005)
            process.kill()
            await process.wait()
            assert not publishing.done()
        survived = sent(folder)
        assert 8 <= survived < 46
        async with relay_process(folder, httpx.URL(url).port or 0):
            assert await publishing == (WORKER.node,)
            reader = network.client(TRAINER)  # the relay's own id is WORKER's here
            fetched = await reader.fetch_checkpoint(manifest_digest(envelope), tmp_path / "into")
            status = (await network.http.get(f"{url}/status")).json()
    assert status["bytes_received"] <= 3_000_000 - (survived - 1) * 65_536  # what survived was not sent again
    for path in source.iterdir():
        assert (fetched / path.name).read_bytes() == path.read_bytes()
