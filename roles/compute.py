"""One worker thread for model work, so that the network's event loop never waits for torch (3 s and peers drop us)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import ParamSpec, TypeVar

from dht.errors import NodeError

P = ParamSpec("P")
R = TypeVar("R")

PATIENCE = 3600.0
"""Seconds that loading weights, or judging one submission, may take: longer than a slow disk takes for a large model."""


class ComputeStuck(NodeError):
    """Model work did not end. Its thread cannot be stopped, so the process has to: nothing else can use the model."""

    def __init__(self, seconds: float) -> None:
        super().__init__(
            f"model work did not end within {seconds:g} s: a device or a library hangs. Start the node again: what was "
            "made and accepted is kept"
        )


class ComputeThread:
    """Runs blocking calls one after another in a thread of its own."""

    def __init__(self, name: str = "compute", *, patience: float = PATIENCE) -> None:
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix=name)
        self._patience = patience

    async def run(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function in the thread and wait for its result. Its exceptions are raised here."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, lambda: function(*args, **kwargs))

    async def run_bounded(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """The same for what must not take longer than `patience` once its turn has come. Raises ComputeStuck (WGT-18)."""
        loop = asyncio.get_running_loop()

        def begin(limit: asyncio.Timeout) -> None:
            with suppress(RuntimeError):  # nobody waits any more
                limit.reschedule(loop.time() + self._patience)

        def call(limit: asyncio.Timeout) -> R:
            loop.call_soon_threadsafe(begin, limit)
            return function(*args, **kwargs)

        limit = asyncio.timeout(None)
        try:
            async with limit:
                return await self.run(call, limit)
        except TimeoutError as error:
            if not limit.expired():
                raise
            raise ComputeStuck(self._patience) from error

    def close(self) -> None:
        """Drop what has not begun; what runs is left to finish."""
        self._pool.shutdown(wait=False, cancel_futures=True)
