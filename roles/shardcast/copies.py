"""Replication: pushes something to relays until enough of them have taken it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable

from dht.identity import NodeId
from roles.shardcast.replies import RelayInfo


async def replicate(
    relays: Iterable[RelayInfo],
    push: Callable[[RelayInfo], Awaitable[bool]],
    *,
    copies: int,
    patience: float,
    hedge: bool,
) -> tuple[NodeId, ...]:
    """Push to `copies` relays concurrently, in order. Returns the ids of those where `push` returned True,
    which may be fewer or none.

    A relay that fails is replaced by the next. After `patience` seconds without news, with `hedge` the next relay is
    tried alongside the slow ones. When no relay is left and at least one copy is made, the slow ones are given up.
    """
    waiting, holders = list(relays), list[NodeId]()
    running: dict[asyncio.Task[bool], RelayInfo] = {}
    async with asyncio.TaskGroup() as group:
        allowed = copies
        while len(holders) < copies:
            while waiting and len(running) + len(holders) < allowed:
                relay = waiting.pop(0)
                running[group.create_task(_as_coroutine(push(relay)))] = relay
            if not running:
                break
            timeout = patience if holders or (hedge and waiting) else None
            done, _ = await asyncio.wait(running, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
            if not done and not (hedge and waiting):
                break
            allowed += not done
            holders += [running.pop(task).node for task in done if task.result()]
            running = {task: relay for task, relay in running.items() if task not in done}
        for task in running:
            task.cancel()
    return tuple(holders)


async def _as_coroutine(pushing: Awaitable[bool]) -> bool:
    return await pushing
