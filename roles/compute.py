"""One worker thread for model work, so that the network's event loop never waits for torch (3 s and peers drop us)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


class ComputeThread:
    """Runs blocking calls one after another in a thread of its own."""

    def __init__(self, name: str = "compute") -> None:
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix=name)

    async def run(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function in the thread and wait for its result. Its exceptions are raised here."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, lambda: function(*args, **kwargs))

    def close(self) -> None:
        """Drop what has not begun; what runs is left to finish."""
        self._pool.shutdown(wait=False, cancel_futures=True)
