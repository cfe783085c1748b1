"""Resolves the host names of relays in its own threads. Any relay record may name a host whose look-up hangs, and the
event loop's own look-ups share their few threads with all other blocking work."""

from __future__ import annotations

import asyncio
import socket
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from roles.shardcast.replies import host_address, is_address_inside

THREADS = 64
"""More than the names that free relay records can add while one look-up hangs: eight every three seconds."""
GOOD_SECONDS, BAD_SECONDS = 60.0, 10.0
"""How long an answer, or a failure, is cached."""
REMEMBERED = 1024
MOST_ADDRESSES = 4

LookUp = Callable[[str], Sequence[str]]
"""Addresses of a host name. Blocks; raises OSError."""


def anywhere(host: str) -> bool:
    """The default rule: relays were named by nobody but the user, so any name may lead inside."""
    return True


def ask_system(host: str) -> list[str]:
    """The addresses that the system's resolver returns, in its order. Raises OSError."""
    found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(place[4][0]) for place in found))[:MOST_ADDRESSES]


class Names:
    """Addresses of hosts. There is one look-up per name at a time, and its answer is cached, so that a flood of
    requests for a slow name occupies one thread.

    `may_lead_inside` decides whether a name may resolve to this machine or its own network. Users that
    take names from peers set it.
    """

    def __init__(self, look_up: LookUp = ask_system) -> None:
        self.may_lead_inside: Callable[[str], bool] = anywhere
        self._look_up = look_up
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="names")
        self._asked: OrderedDict[str, tuple[float, asyncio.Future[Sequence[str]]]] = OrderedDict()

    async def find(self, host: str, *, within: float | None) -> Sequence[str]:
        """Addresses of a host, the system's first choice first. A host that is an address already is returned as it is.
        Raises OSError, or TimeoutError after `within` seconds."""
        if host_address(host) is not None:
            return [host]
        async with asyncio.timeout(within):
            addresses = await asyncio.shield(self._answer(host))
        if any(map(is_address_inside, addresses)) and not self.may_lead_inside(host):
            raise OSError("a relay that anybody may have named leads into this machine's own network")
        return addresses

    def close(self) -> None:
        """Abandon open look-ups; each thread ends when its look-up returns."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _answer(self, host: str) -> asyncio.Future[Sequence[str]]:
        asked, answer = self._asked.get(host, (0.0, None))
        if answer is None or _is_stale(answer, time.monotonic() - asked):
            answer = asyncio.get_running_loop().run_in_executor(self._threads, self._look_up, host)
            answer.add_done_callback(
                lambda done: done.cancelled() or done.exception()
            )  # perhaps nobody waits for it any more
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
