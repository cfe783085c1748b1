"""Executes faults: each begins, lasts a while, and is undone."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from benchmarks.chaos.schedule import Fault
from benchmarks.chaos.stage import Stage


async def play(stage: Stage, faults: Sequence[Fault], say: Callable[[str], None]) -> None:
    """Execute all faults, each at its time, with bad lines throughout. Returns when the last one is undone."""
    begun = asyncio.get_running_loop().time()
    stage.weather.is_bad = True
    try:
        async with asyncio.TaskGroup() as group:
            for fault in faults:
                await asyncio.sleep(max(0.0, begun + fault.at - asyncio.get_running_loop().time()))
                say(f"{fault.at:4.0f} s, step {stage.step}: {fault}")
                group.create_task(_make(stage, fault))
    finally:
        stage.weather.is_bad = False


async def _make(stage: Stage, fault: Fault) -> None:
    victim = fault.victims[0]
    match fault.kind:
        case "kill":
            await stage.kill(victim)
            await asyncio.sleep(fault.seconds)
            await stage.start(victim)
        case "kill p2pd":
            stage.kill_daemon(victim)
        case "fill the disk":
            stage.fill_disk(victim)
            await asyncio.sleep(fault.seconds)
            stage.empty_disk(victim)
        case "set the clock":
            stage.set_clock(victim, fault.amount)
            await asyncio.sleep(fault.seconds)
            stage.set_clock(victim, 0.0)
        case "partition":
            await stage.divide(frozenset(fault.victims))
            await asyncio.sleep(fault.seconds)
            stage.heal()
