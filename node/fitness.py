"""Whether this machine is what the run asks of its workers: measured before anything is downloaded, refused with reasons."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import structlog

from dht.encoding import decode
from dht.errors import Malformed, TransportError
from ledger.errors import LedgerError
from ledger.records import Commit
from node.errors import ConfigError
from node.hardware import measure_hardware
from roles.messages import CheckpointManifest
from roles.requirements import Hardware, find_shortfalls
from roles.shardcast.client import RelayClient
from roles.shardcast.shards import Layout
from roles.spec import RequirementsSpec, RunSpec

log = structlog.get_logger()

MEASURE_SECONDS = 5.0
MEASURE_BYTES = 64 * 2**20
LEAST_BYTES = 2**20
"""Below this a transfer tells more about round trips than about the line."""
AT_ONCE = 4
"""Shards fetched side by side, from whichever relays there are."""


class Unfit(ConfigError):
    """This machine is not what the run asks for; the text has every shortfall."""


async def measure_machine(
    spec: RunSpec, *, folder: Path, client: RelayClient, commits: Callable[[], Awaitable[Sequence[Commit]]]
) -> Hardware:
    """What this machine has; the line to the relays is measured only where the run asks something of it."""
    mbit = await _measure_line(client, commits) if spec.requirements.download_mbit else None
    return await asyncio.to_thread(measure_hardware, folder, download_mbit=mbit)


def check_fitness(required: RequirementsSpec, hardware: Hardware) -> None:
    """Raises Unfit with everything that is missing."""
    missing = find_shortfalls(required, hardware)
    if missing:
        raise Unfit(f"this machine is not what the run asks for. {'; '.join(map(str, missing))}")


async def _measure_line(client: RelayClient, commits: Callable[[], Awaitable[Sequence[Commit]]]) -> float | None:
    """Mbit/s from the run's relays, of its newest checkpoint's shards; None where that cannot be measured."""
    try:
        committed = await commits()
        if not committed:
            return None
        envelope = await client.fetch_manifest(committed[-1].manifest)
        layout = Layout(decode(CheckpointManifest, envelope.payload))
        return await measure_download(
            client.get, [(digest, layout.size(index)) for index, digest in enumerate(layout.manifest.shards)]
        )
    except (TransportError, LedgerError, Malformed) as error:
        log.info("line.unmeasured", why=str(error))
        return None


async def measure_download(
    get: Callable[..., Awaitable[bytes]], shards: Sequence[tuple[str, int]], *, seconds: float = MEASURE_SECONDS
) -> float | None:
    """Mbit/s over at most `seconds` and MEASURE_BYTES, several shards (digest, bytes) at once; None when they are too
    few bytes to tell. Raises TransportError when no relay gives any."""
    waiting, begun, received = list(shards), time.monotonic(), 0

    async def fetch() -> None:
        nonlocal received
        while waiting and received < MEASURE_BYTES:
            digest, size = waiting.pop()
            received += len(await get(digest, limit=size))

    async with asyncio.TaskGroup() as group:
        workers = [group.create_task(fetch()) for _ in range(AT_ONCE)]
        _, late = await asyncio.wait(workers, timeout=seconds)
        for worker in late:
            worker.cancel()
    spent = max(time.monotonic() - begun, 1e-6)
    return received * 8 / spent / 1e6 if received >= LEAST_BYTES else None
