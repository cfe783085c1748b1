"""One worker thread for model work, so that the event loop never waits for torch (peers drop us
after two unanswered calls)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

from dht.errors import NodeError

P = ParamSpec("P")
R = TypeVar("R")

PATIENCE = 3600.0
"""Seconds that loading a model or its weights may take: longer than a slow disk takes for a large one."""
LOOK_SECONDS = 5.0


class ComputeStuck(NodeError):
    """A bounded call did not return. Its thread cannot be stopped and holds the model, so the process must end."""

    def __init__(self, seconds: float) -> None:
        super().__init__(
            f"loading a model did not end within {seconds:g} s: a device or a library hangs. Start the node again: what "
            "was made and accepted is kept"
        )


class ComputeThread:
    """Runs blocking calls one after another in its own thread."""

    def __init__(self, name: str = "compute", *, patience: float = PATIENCE) -> None:
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix=name)
        self._patience = patience
        self._until: float | None = None  # set in the thread, read in the loop
        self._is_stuck = False

    async def run(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function in the thread and wait for its result. Its exceptions are raised here; so is ComputeStuck
        once the thread is stuck."""
        if self._is_stuck:
            raise ComputeStuck(self._patience)
        return await asyncio.get_running_loop().run_in_executor(self._pool, lambda: function(*args, **kwargs))

    async def load(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """As `run`, for a call that must end within `patience` (see `bounded`)."""
        return await self.run(lambda: self.bounded(function, *args, **kwargs))

    def bounded(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Make a call, in the thread, that must end within `patience`; `watch` ends the node
        when it does not (WGT-18)."""
        self._until = time.monotonic() + self._patience
        try:
            return function(*args, **kwargs)
        finally:
            self._until = None

    async def watch(self) -> None:
        """Watch bounded calls until cancelled. Raises ComputeStuck when one exceeds `patience`."""
        while not self._is_stuck:
            await asyncio.sleep(min(LOOK_SECONDS, self._patience))
            until = self._until
            self._is_stuck = until is not None and time.monotonic() > until
        raise ComputeStuck(self._patience)

    def close(self) -> None:
        """Drop calls that have not begun; a running one is left to finish."""
        self._pool.shutdown(wait=False, cancel_futures=True)
