"""Whether a machine is fit for a run: a refusal gives every reason, and the bandwidth to the relays is measured."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from node.app import Node
from node.config import NodeConfig
from node.errors import Unfit
from node.fitness import LEAST_BYTES, Meter, check_fitness, measure_download
from node.log import EventStream
from roles.requirements import GB, Hardware
from roles.spec import GpuSpec, RequirementsSpec
from tests.builders import make_spec

ASKED = RequirementsSpec(gpus=(GpuSpec(models=("H100",)),), ram_gb=8, download_mbit=50)
MACHINE = Hardware("x86_64", cores=2, ram=4 * GB, disk=GB, download_mbit=49.9)


def test_check_fitness__refuses_with_every_reason() -> None:
    with pytest.raises(Unfit) as refused:
        check_fitness(ASKED, MACHINE)
    said = str(refused.value)
    assert "GPU: the run asks for 1 x H100, this machine has none" in said
    assert "memory: the run asks for 8 GB, this machine has 4 GB" in said
    assert "download: the run asks for 50 Mbit/s, this machine has 49.9 Mbit/s" in said


def test_check_fitness__takes_what_is_enough() -> None:
    check_fitness(RequirementsSpec(ram_gb=4, download_mbit=50), replace(MACHINE, download_mbit=50.0))
    check_fitness(RequirementsSpec(), MACHINE)


BLOCK = 1000


async def give(digest: str, size: int, meter: Meter) -> None:
    """A relay that responds immediately."""
    meter.take(b"x" * size)


async def test_measure_download__megabits_of_what_came() -> None:
    measured = await measure_download(give, [(str(number), LEAST_BYTES // 8) for number in range(8)])
    assert measured is not None
    assert measured > 1.0


async def test_measure_download__a_slow_line_is_told_by_part_of_a_shard() -> None:
    """Its shard does not finish in time, and counts nevertheless."""

    async def trickle(digest: str, size: int, meter: Meter) -> None:
        meter.take(b"x" * BLOCK)
        await asyncio.Event().wait()

    measured = await measure_download(trickle, [("a", 2 * LEAST_BYTES)], seconds=0.05)
    assert measured is not None
    assert 0 < measured <= BLOCK * 8 / 0.05 / 1e6


async def test_measure_download__too_few_bytes_tell_nothing() -> None:
    assert await measure_download(give, [("a", LEAST_BYTES - 1)]) is None
    assert await measure_download(give, []) is None
    assert await measure_download(give, [("a", LEAST_BYTES)]) is not None


async def test_measure_download__relays_without_the_shard_are_no_slow_line() -> None:
    async def refuse(digest: str, size: int, meter: Meter) -> None:
        return None

    assert await measure_download(refuse, [("a", LEAST_BYTES), ("b", 1)]) is None


@pytest.mark.parametrize(("role", "is_refused"), [("worker", True), ("validator", False), ("relay", False)])
async def test_node__a_worker_leaves_before_it_registers_and_says_why(
    role: str, is_refused: bool, tmp_path: Path
) -> None:
    """The spec requires more memory than any machine has; a role without requirements continues."""
    config = NodeConfig.model_validate({"role": role, "data": tmp_path})
    parts: Any = SimpleNamespace(
        config=config,
        spec=make_spec(requirements=RequirementsSpec(ram_gb=10**6)),
        relays=None,
        book=None,
        ledger=SimpleNamespace(commits=None),
    )
    events = EventStream(tmp_path / "events.jsonl")
    node = Node(config, events)
    if is_refused:
        with pytest.raises(Unfit, match="memory: the run asks for 1000000 GB, this machine has"):
            await node._measure(parts)
    else:
        await node._measure(parts)
    assert "cores" in str(node.status.plain()["hardware"])  # what its record will show
    events.close()
