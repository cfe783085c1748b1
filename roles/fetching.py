"""Turns at fetching blobs of submissions, so that no worker can hold up the others, neither at validators nor at the trainer.

Who hands in what no relay has, or names a relay that only pretends to send it, takes a few turns of his own: no more
than `OF_NODE` at once, and once a blob of his was not to be had only those kept for such nodes.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from weakref import WeakValueDictionary

from dht.errors import NodeError
from roles.ports import Relays
from roles.trusted import AdmittedSubmission

AT_ONCE = 8
OF_NODE = 2
DOUBTFUL = 2
FETCH_SECONDS = 30


class Fetches:
    """Blobs of submissions, from any relay."""

    def __init__(self, relays: Relays) -> None:
        self._relays = relays
        self._turns, self._doubtful = asyncio.Semaphore(AT_ONCE), asyncio.Semaphore(DOUBTFUL)
        self._of_node: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()
        self._lost: defaultdict[str, set[str]] = defaultdict(set)  # submissions without their blob, by node

    async def get(self, item: AdmittedSubmission, *, limit: int) -> bytes:
        """The blob, its digest right. Raises TransportError or TimeoutError when it is not to be had now."""
        node = item.submission.node
        own_turn = self._of_node.setdefault(node, asyncio.Semaphore(OF_NODE))
        async with own_turn, self._doubtful if self._lost.get(node) else self._turns:
            try:
                async with asyncio.timeout(FETCH_SECONDS):
                    data = await self._relays.get(item.submission.blob, limit=limit, relays=item.relays)
            except (NodeError, TimeoutError):
                self._lost[node].add(item.digest)
                raise
        self.forget(item)
        return data

    def forget(self, item: AdmittedSubmission) -> None:
        """It is here, or wanted no more."""
        self._lost[item.submission.node].discard(item.digest)
        if not self._lost[item.submission.node]:
            del self._lost[item.submission.node]
