"""Resolves the host names of relays in threads of its own. Anybody's relay record may name a host whose answer never comes, and
the event loop's own look-ups share their few threads with all other work that blocks."""

from __future__ import annotations

import asyncio
import socket
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from roles.shardcast.replies import host_address, is_address_inside

THREADS = 64
"""More than the names that free relay records can bring while one look-up hangs: eight, anew every three seconds."""
GOOD_SECONDS, BAD_SECONDS = 60.0, 10.0
"""How long an answer, or none, is taken as it is."""
REMEMBERED = 1024
MOST_ADDRESSES = 4

LookUp = Callable[[str], Sequence[str]]
"""Addresses of a host name. Blocks; raises OSError."""


def anywhere(host: str) -> bool:
    """Nobody but the user named the relays."""
    return True


def ask_system(host: str) -> list[str]:
    """What the system's resolver says, in its order. Raises OSError."""
    found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(place[4][0]) for place in found))[:MOST_ADDRESSES]


class Names:
    """Addresses of hosts. A name is asked for once at a time, and its answer kept for a while, so that a flood of questions
    for a slow one waits in one thread.

    `may_lead_inside` says of a name whether it may turn out to be on this machine or its own network; whoever takes names
    from peers sets it.
    """

    def __init__(self, look_up: LookUp = ask_system) -> None:
        self.may_lead_inside: Callable[[str], bool] = anywhere
        self._look_up = look_up
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="names")
        self._asked: OrderedDict[str, tuple[float, asyncio.Future[Sequence[str]]]] = OrderedDict()

    async def find(self, host: str, *, within: float | None) -> Sequence[str]:
        """Addresses of a host, the system's first choice first; one that is an address already is returned as it is. Raises
        OSError, or TimeoutError after `within` seconds."""
        if host_address(host) is not None:
            return [host]
        async with asyncio.timeout(within):
            addresses = await asyncio.shield(self._answer(host))
        if any(map(is_address_inside, addresses)) and not self.may_lead_inside(host):
            raise OSError("a relay that anybody may have named leads into this machine's own network")
        return addresses

    def close(self) -> None:
        """Abandon open look-ups; threads end when theirs returns."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _answer(self, host: str) -> asyncio.Future[Sequence[str]]:
        asked, answer = self._asked.get(host, (0.0, None))
        if answer is None or _is_stale(answer, time.monotonic() - asked):
            answer = asyncio.get_running_loop().run_in_executor(self._threads, self._look_up, host)
            answer.add_done_callback(
                lambda done: done.cancelled() or done.exception()
            )  # nobody may be waiting any more
            self._asked[host] = time.monotonic(), answer
            self._asked.move_to_end(host)
            if len(self._asked) > REMEMBERED:
                self._asked.popitem(last=False)
        return answer


def _is_stale(answer: asyncio.Future[Sequence[str]], age: float) -> bool:
    if not answer.done():
        return False
    is_bad = answer.cancelled() or answer.exception() is not None
    return answer.cancelled() or age > (BAD_SECONDS if is_bad else GOOD_SECONDS)
