"""Model work in its thread: results, errors, and a load that never ends."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest

from roles.compute import ComputeStuck, ComputeThread


@pytest.fixture
def hang() -> Iterator[threading.Event]:
    """A call blocks for as long as the test can see; then the thread may end."""
    event = threading.Event()
    yield event
    event.set()


async def test_run__gives_the_result_and_raises_the_error() -> None:
    compute = ComputeThread()
    assert await compute.run(compute.bounded, divmod, 7, 3) == (2, 1)
    with pytest.raises(ZeroDivisionError):
        await compute.run(compute.bounded, divmod, 7, 0)
    compute.close()


async def test_watch__a_load_that_hangs_is_given_up__wgt_18(hang: threading.Event) -> None:
    compute = ComputeThread(patience=0.05)
    loading = asyncio.ensure_future(compute.run(compute.bounded, hang.wait))
    with pytest.raises(ComputeStuck, match="did not end within"):
        await compute.watch()
    with pytest.raises(ComputeStuck):  # nobody waits behind it for ever
        await compute.run(int, "7")
    assert not loading.done()
    compute.close()
    hang.set()
    await loading


async def test_watch__work_that_is_not_a_load_may_take_as_long_as_it_takes(hang: threading.Event) -> None:
    compute = ComputeThread(patience=0.05)
    working = asyncio.ensure_future(compute.run(hang.wait))
    watching = asyncio.ensure_future(compute.watch())
    done, _ = await asyncio.wait([watching, working], timeout=0.3)
    assert not done
    watching.cancel()
    hang.set()
    await working
    compute.close()
