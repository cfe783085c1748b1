"""Model work in its thread: results, errors, and a call that never ends."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest

from roles.compute import ComputeStuck, ComputeThread


@pytest.fixture
def hang() -> Iterator[threading.Event]:
    """A call waits for it, for ever as far as the test can see; then the thread may end."""
    event = threading.Event()
    yield event
    event.set()


async def test_run_bounded__gives_the_result_and_raises_the_error() -> None:
    compute = ComputeThread()
    assert await compute.run_bounded(divmod, 7, 3) == (2, 1)
    with pytest.raises(ZeroDivisionError):
        await compute.run_bounded(divmod, 7, 0)
    compute.close()


async def test_run_bounded__a_load_that_hangs_is_given_up__wgt_18(hang: threading.Event) -> None:
    compute = ComputeThread(patience=0.05)
    with pytest.raises(ComputeStuck, match="did not end within"):
        await compute.run_bounded(hang.wait)
    compute.close()


async def test_run_bounded__waiting_for_a_turn_is_no_hang(hang: threading.Event) -> None:
    compute = ComputeThread(patience=0.2)
    first = asyncio.ensure_future(compute.run(hang.wait))
    second = asyncio.ensure_future(compute.run_bounded(int, "7"))
    done, _ = await asyncio.wait([second], timeout=0.4)
    assert not done
    hang.set()
    assert await second == 7
    await first
    compute.close()


async def test_run_bounded__cancelled_waits_no_longer(hang: threading.Event) -> None:
    compute = ComputeThread()
    waiting = asyncio.ensure_future(compute.run_bounded(hang.wait))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    compute.close()
