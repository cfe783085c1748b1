"""Client of one relay's board, for writing and reading. Nothing is verified here; the receiver of the rows does that.

`Poster` sends rows in batches. `Follower` requests keys and holds the request open. Neither ends because of a fault of
the relay: each waits, longer every time, and goes on.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress

import httpx

from dht.errors import Malformed, TransportError
from dht.rows import Outcome
from roles.boards.wire import LARGEST_BATCH, MAX_KEYS, Batch, Question, frame, pack_question, parse_batch, posts
from roles.shardcast.replies import HELD_OPEN, RelayInfo

POST_SECONDS = 8.0
CONNECT_SECONDS = 5.0
ANSWER_SECONDS = 10.0
"""Additional time allowed for the response."""
FRESH_SECONDS = 2 * (HELD_OPEN + ANSWER_SECONDS)
"""How long after its last response a board counts as heard."""
MAX_QUEUED = 4096
MAX_MALFORMED = 16
"""Number of malformed rows tolerated in a response."""
AT_A_TIME = 16
"""Rows taken before other tasks get a turn."""
STRANGER_SECONDS = 0.002
"""Pause after each row of a non-member: free ids can sign any number, and judging each takes about 80 us."""
MAX_ROUNDS = 64
"""Responses until a board has sent all it has: 64 MiB, which is what one holds."""
FIRST_PAUSE, LONGEST_PAUSE = 0.5, 30.0
FAULTS = (
    httpx.HTTPError,
    httpx.InvalidURL,
    httpx.StreamError,
    Malformed,
    TimeoutError,
    OSError,
    ValueError,
    ExceptionGroup,  # raised by the HTTP library's own task groups
)


async def call(http: httpx.AsyncClient, url: str, body: bytes, *, seconds: float, headers: dict[str, str]) -> bytes:
    """A relay's response to a POST, at most LARGEST_BATCH bytes, without decompression. Raises TransportError."""
    patience = httpx.Timeout(seconds, connect=CONNECT_SECONDS)
    headers = {"Accept-Encoding": "identity", **headers}
    try:
        async with (
            asyncio.timeout(seconds),
            http.stream("POST", url, content=body, headers=headers, timeout=patience) as reply,
        ):
            if reply.status_code != 200:
                raise TransportError(f"the board answered {reply.status_code}")
            data = bytearray()
            async for block in reply.aiter_raw():
                data += block
                if len(data) > LARGEST_BATCH:
                    raise TransportError("the board's answer is too long")
            return bytes(data)
    except FAULTS as error:
        raise TransportError(f"{type(error).__name__}: {error}"[:200]) from error


class Poster:
    """Posts rows to one board."""

    def __init__(self, relay: RelayInfo, http: httpx.AsyncClient) -> None:
        self.relay, self._http = relay, http
        self._queue: dict[bytes, asyncio.Future[bool]] = {}
        self._filled = asyncio.Event()

    def offer(self, row: bytes) -> asyncio.Future[bool]:
        """Queue a row. The future's result is whether the board holds it."""
        future = self._queue.get(row)
        if future is None:
            future = self._queue[row] = asyncio.get_running_loop().create_future()
            if len(self._queue) > MAX_QUEUED:
                _settle(self._queue.pop(next(iter(self._queue))), False)
            self._filled.set()
        return future

    async def run(self) -> None:
        """Send until cancelled."""
        while True:
            await self._filled.wait()
            self._filled.clear()
            queue, self._queue = self._queue, {}
            try:
                for portion in posts(list(queue)):
                    await self._post(portion, queue)
            finally:
                for future in queue.values():
                    _settle(future, False)

    async def _post(self, rows: list[bytes], queue: dict[bytes, asyncio.Future[bool]]) -> None:
        with suppress(TransportError):
            url = self.relay.url.rstrip("/") + "/board"
            headers = {"Content-Type": "application/octet-stream"}
            answer = await call(self._http, url, frame(rows), seconds=POST_SECONDS, headers=headers)
            for row, kept in zip(rows, answer, strict=False):
                _settle(queue[row], kept == 1)


def _settle(future: asyncio.Future[bool], is_held: bool) -> None:
    if not future.done():
        future.set_result(is_held)


class Follower:
    """Follows keys on one board. `took` receives the bytes of each row and returns the outcome;
    None for a malformed row."""

    def __init__(self, relay: RelayInfo, http: httpx.AsyncClient, took: Callable[[bytes], Outcome | None]) -> None:
        self.relay, self._http, self._took = relay, http, took
        self._keys: tuple[str, ...] = ()
        self._followed: frozenset[str] = frozenset()
        self._heard = float("-inf")
        self._board, self._since = "", 0
        self._changed = asyncio.Event()
        self._pause = FIRST_PAUSE  # after the next failure
        self.pause: Callable[[], float] = lambda: FIRST_PAUSE

    def ask_for(self, keys: Iterable[str]) -> None:
        """Follow these keys from now on."""
        wanted = tuple(sorted(keys))[:MAX_KEYS]
        if wanted != self._keys:
            self._keys = wanted
            self._changed.set()

    def covers(self, key: str) -> bool:
        """Whether the board has answered about this key within `FRESH_SECONDS`."""
        return key in self._followed and time.monotonic() - self._heard < FRESH_SECONDS

    async def run(self) -> None:
        """Request rows until cancelled."""
        while True:
            self._changed.clear()
            keys = self._keys
            if not keys:
                await self._changed.wait()
                continue
            try:
                await self._ask_all(keys)
            except (TransportError, Malformed):
                self._followed = frozenset()
                await asyncio.sleep(self._pause)
                self._pause = min(2 * self._pause, LONGEST_PAUSE)

    async def _ask_all(self, keys: tuple[str, ...]) -> None:
        """Read new keys from their beginning, then follow all of them, until other keys are wanted."""
        if new := tuple(key for key in keys if key not in self._followed):
            upto = await self._read_whole(new)
            if not self._followed:
                self._since = upto
            self._followed |= set(new)
        self._followed &= set(keys)
        while not self._changed.is_set():
            asking = asyncio.ensure_future(self._ask(keys, since=self._since, wait=HELD_OPEN))
            changing = asyncio.ensure_future(self._changed.wait())
            try:
                await asyncio.wait({asking, changing}, return_when=asyncio.FIRST_COMPLETED)
                if not asking.done():
                    return
                self._since, self._pause = (await asking).upto, FIRST_PAUSE
            finally:
                for task in (asking, changing):
                    task.cancel()
                await asyncio.gather(asking, changing, return_exceptions=True)
            await asyncio.sleep(self.pause())

    async def _read_whole(self, keys: tuple[str, ...]) -> int:
        """Read everything under these keys, up to what a board can hold. Returns the serial reached."""
        upto = 0
        for _ in range(MAX_ROUNDS):
            batch = await self._ask(keys, since=upto, wait=0.0)
            if batch.upto <= upto or not batch.rows:
                return batch.upto
            upto = batch.upto
        return upto

    async def _ask(self, keys: tuple[str, ...], *, since: int, wait: float) -> Batch:
        url, body = self.relay.url.rstrip("/") + "/board/read", pack_question(Question(self._board, since, keys))
        answer = await call(
            self._http, url, body, seconds=wait + ANSWER_SECONDS, headers={"X-Wait": f"{wait:g}"} if wait else {}
        )
        batch = parse_batch(answer)
        await self._take_all(batch.rows)
        self._board, self._heard = batch.board, time.monotonic()
        return batch

    async def _take_all(self, rows: Sequence[bytes]) -> None:
        """Take the rows. Raises Malformed when a response is mostly invalid, since each row
        costs us a signature check."""
        malformed = strangers = 0
        for number, row in enumerate(rows, 1):
            outcome = self._took(row)
            malformed += outcome is None
            strangers += outcome is Outcome.STRANGER
            if malformed > MAX_MALFORMED:
                raise Malformed("the board passes malformed rows on")
            if number % AT_A_TIME == 0:
                await asyncio.sleep(strangers * STRANGER_SECONDS)
                strangers = 0
