"""A reader in a process of its own, to be killed or starved. Arguments: folder, manifest digest, URL and id of its
relay, and the largest file it may write (0: no limit)."""

from __future__ import annotations

import asyncio
import resource
import sys
from pathlib import Path

from roles.shardcast.client import RelayClient
from roles.shardcast.errors import StoreFull
from roles.shardcast.relay_http import make_http
from roles.shardcast.replies import RelayInfo
from tests.unit.roles.shardcast.network import RUN, TRAINER, WORKER


async def main(folder: Path, digest: str, url: str, relay: str, largest: int) -> None:
    if largest:
        resource.setrlimit(resource.RLIMIT_FSIZE, (largest, largest))
    async with make_http() as http:
        client = RelayClient(
            WORKER, run=RUN, trainers=[TRAINER.node], relays=lambda: [RelayInfo(relay, url)], http=http
        )
        try:
            sys.stdout.write(f"{await client.fetch_checkpoint(digest, folder)}\n")
        except StoreFull as error:
            sys.stdout.write(f"full: {error}\n")


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), sys.argv[2], sys.argv[3], sys.argv[4], int(sys.argv[5])))
