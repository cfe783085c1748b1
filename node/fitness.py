"""Whether this machine meets the run's requirements for workers. Measured before anything is
downloaded; refused with reasons."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import structlog

from dht.encoding import decode
from dht.errors import Malformed, PeerError, TransportError
from ledger.errors import LedgerError
from ledger.records import Commit
from node.errors import Unfit
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
"""Transfers smaller than this say more about round trips than about bandwidth."""
AT_ONCE = 4
"""Shards fetched in parallel, from whichever relays there are."""


async def measure_machine(
    spec: RunSpec | None, *, folder: Path, client: RelayClient, commits: Callable[[], Awaitable[Sequence[Commit]]]
) -> Hardware:
    """Measure this machine. Bandwidth to the relays is measured only if a run is given and has a requirement for it."""
    mbit = await _measure_line(client, commits) if spec is not None and spec.requirements.download_mbit else None
    return await asyncio.to_thread(measure_hardware, folder, download_mbit=mbit)


def check_fitness(required: RequirementsSpec, hardware: Hardware) -> None:
    """Raises Unfit listing everything that is missing."""
    missing = find_shortfalls(required, hardware)
    if missing:
        raise Unfit(f"this machine is not what the run asks for. {'; '.join(map(str, missing))}")


async def _measure_line(client: RelayClient, commits: Callable[[], Awaitable[Sequence[Commit]]]) -> float | None:
    """Mbit/s from the run's relays, using shards of its newest checkpoint; None where that cannot be measured."""
    try:
        committed = await commits()
        if not committed:
            return None
        envelope = await client.fetch_manifest(committed[-1].manifest)
        layout = Layout(decode(CheckpointManifest, envelope.payload))
    except (TransportError, LedgerError, Malformed) as error:
        log.info("line.unmeasured", why=str(error))
        return None

    async def receive(digest: str, size: int, meter: Meter) -> None:
        for relay in client.link.order():
            try:
                await client.link.receive(relay, digest, limit=size, sink=meter)
                return
            except (PeerError, TransportError):
                continue

    return await measure_download(
        receive, [(digest, layout.size(index)) for index, digest in enumerate(layout.manifest.shards)]
    )


class Meter:
    """A sink that counts bytes and keeps none. Used for several shards at once, each in its own thread."""

    def __init__(self) -> None:
        self.received = 0
        self._lock = threading.Lock()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        return None

    def take(self, block: bytes | bytearray | memoryview, /) -> None:
        """Count a block."""
        with self._lock:
            self.received += len(block)

    def commit(self) -> None:
        """Nothing to do: the data is not kept."""


Receive = Callable[[str, int, Meter], Awaitable[None]]
"""Fetches the shard with this digest and size into a meter; gives up silently when nobody has it."""


async def measure_download(
    receive: Receive, shards: Sequence[tuple[str, int]], *, seconds: float = MEASURE_SECONDS
) -> float | None:
    """Mbit/s over at most `seconds` and MEASURE_BYTES, several shards (digest, bytes) at once.

    None when the shards are too small to tell, or nothing arrived at all, which is the
    relays' fault and not the line's.
    """
    if sum(size for _, size in shards) < LEAST_BYTES:
        return None
    waiting, meter, begun = list(shards), Meter(), time.monotonic()

    async def work() -> None:
        while waiting and meter.received < MEASURE_BYTES:
            await receive(*waiting.pop(), meter)

    async with asyncio.TaskGroup() as group:
        workers = [group.create_task(work()) for _ in range(AT_ONCE)]
        _, late = await asyncio.wait(workers, timeout=seconds)
        for worker in late:
            worker.cancel()
    spent = max(time.monotonic() - begun, 1e-6)
    return meter.received * 8 / spent / 1e6 if meter.received else None
