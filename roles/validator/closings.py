"""The blocks at which an epoch may close."""

from __future__ import annotations

from collections.abc import Sequence

from ledger.records import Block, FinalRoot
from ledger.rules import find_closing_block
from roles.ports import Ledger

MAX_CLOSINGS = 16


class Closings:
    """Finds closing blocks from the ledger, for one epoch at a time."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._walked = -1  # block up to which this epoch's closings are known to be idle

    def forget(self) -> None:
        """Start over: another epoch begins."""
        self._walked = -1

    async def find(self, roots: Sequence[FinalRoot]) -> list[Block]:
        """Blocks at which the epoch after these roots may close, earliest first. An epoch in which nobody earned runs
        on to the next closing.

        After the first closing, one without a commit since the previous one adds nothing and is skipped. However many
        of those an idle run accumulates, they are walked only once.
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
