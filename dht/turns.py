"""Yielding in loops over peers' data. Thousands of rows, each cheap, would together block the event loop."""

from __future__ import annotations

import asyncio

ROWS_BETWEEN_YIELDS = 32


async def let_others_run(number: int) -> None:
    """Await this for each row, numbered from 0. One call in `ROWS_BETWEEN_YIELDS` yields to the event loop."""
    if number % ROWS_BETWEEN_YIELDS == ROWS_BETWEEN_YIELDS - 1:
        await asyncio.sleep(0)
