"""A relay in a process of its own, to be killed. Arguments: folder, port."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from roles.relay import Relay, serve
from tests.unit.roles.shardcast.network import RUN, TRAINER, WORKER


async def main(folder: Path, port: int) -> None:
    relay = Relay(WORKER, root=folder, run=RUN, trainers=[TRAINER.node], is_member=lambda node: False)
    async with serve(relay.app, host="127.0.0.1", port=port) as url:
        sys.stdout.write(url + "\n")
        sys.stdout.flush()
        await relay.run()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), int(sys.argv[2])))
