"""Takes turns at fetching the blobs of submissions, so that no worker can hold up the others, neither at
validators nor at the trainer.

At most `OF_NODE` blobs of a node are fetched at once. A node whose blobs no relay has, or that names relays which only
pretend to send them, is limited further: once a blob of it could not be fetched, it shares the `DOUBTFUL` slots
reserved for such nodes.
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
    """Fetches blobs of submissions from any relay."""

    def __init__(self, relays: Relays) -> None:
        self._relays = relays
        self._turns, self._doubtful = asyncio.Semaphore(AT_ONCE), asyncio.Semaphore(DOUBTFUL)
        self._of_node: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()
        self._lost: defaultdict[str, set[str]] = defaultdict(set)  # submissions without their blob, by node

    async def get(self, item: AdmittedSubmission, *, limit: int) -> bytes:
        """The blob, its digest verified. Raises TransportError or TimeoutError when it cannot be fetched now."""
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
        """Record that a submission's blob was fetched, or is no longer wanted."""
        self._lost[item.submission.node].discard(item.digest)
        if not self._lost[item.submission.node]:
            del self._lost[item.submission.node]
