"""The blocks an epoch may close at."""

from __future__ import annotations

from collections.abc import Sequence

from ledger.records import Block, FinalRoot
from ledger.rules import find_closing_block
from roles.ports import Ledger

MAX_CLOSINGS = 16


class Closings:
    """One epoch at a time, from the ledger."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._walked = -1  # block up to which this epoch's closings are known to be idle ones

    def forget(self) -> None:
        """Start over: another epoch begins."""
        self._walked = -1

    async def find(self, roots: Sequence[FinalRoot]) -> list[Block]:
        """Blocks the epoch after these may close at, earliest first: one in which nobody earned runs on to the next.

        After the first, one with no commit since the one before adds nothing: such times, however many of them an idle
        run lets pass, are walked over once.
        """
        start = roots[-1].closing_block if roots else None
        first = await find_closing_block(self._ledger, start)
        if first is None:
            return []
        found, after = [first], max(first.number, self._walked)
        commits = [commit.block for commit in await self._ledger.commits()]
        while len(found) < MAX_CLOSINGS and (block := await find_closing_block(self._ledger, after)) is not None:
            if any(after < number <= block.number for number in commits):
                found.append(block)
            elif len(found) == 1:
                self._walked = block.number
            after = block.number
        return found
