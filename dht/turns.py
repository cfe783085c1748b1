"""Turns for others in loops over what peers send: thousands of rows, each cheap, would together hold up the event loop."""

from __future__ import annotations

import asyncio

ROWS_BETWEEN_YIELDS = 32


async def let_others_run(number: int) -> None:
    """Await it for each row, numbered from 0: one call in `ROWS_BETWEEN_YIELDS` gives up the event loop for a turn."""
    if number % ROWS_BETWEEN_YIELDS == ROWS_BETWEEN_YIELDS - 1:
        await asyncio.sleep(0)
