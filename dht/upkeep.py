"""Keeps a node connected to the DHT: keeps dialling its seeds, refreshes the routing table, watches clock and daemon,
and rebuilds everything after the daemon dies.

Knows no rows; the caller supplies what to do with them at each refresh.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Literal

import structlog

from dht.bare import DHTID
from dht.errors import TransportError
from dht.identity import NodeId
from dht.locks import StartError
from dht.p2p import Reachability
from dht.peers import PeerAddress, PeerBook, PeerCache
from dht.protocol import RowProtocol
from dht.session import Session, Setup, build_session

State = Literal["starting", "waiting for seeds", "online", "rebuilding", "down", "stopped"]

TOUCH_SECONDS = 30.0  # interval between pings of a connected peer, which never stop (pitfall BOOT-09)
REFRESH_SECONDS = 30.0
MAX_DIALLED = 512
MAX_WAYS = 8
TRIES = 12  # failures in a row after which a peer that is not a seed is no longer dialled
SKEW_SECONDS = 1.0  # a larger skew is reported; hivemind's own limit is 3
REBUILDS = (10, 600.0)  # (count, seconds): more rebuilds than this means "down"
SILENCES = 3  # refreshes in a row without an answer from the daemon before it is killed
_LONGEST_BACK_OFF = 30.0

log = structlog.get_logger()


class _DaemonDied(Exception):
    """p2pd ended by itself."""


class Upkeep:
    """One node's connection to the DHT. `session` is None while the daemon restarts."""

    def __init__(
        self,
        *,
        node: NodeId,
        setup: Setup,
        protocol: type[RowProtocol],
        book: PeerBook,
        cache: PeerCache,
        on_refresh: Callable[[], None],
    ) -> None:
        self.node = node
        self.session: Session | None = None
        self.state: State = "starting"
        self.rebuilds = 0
        self.reachability: Reachability = "unknown"
        self.connected: set[NodeId] = set()
        self.addresses: list[str] = []
        self.wanted: dict[NodeId, list[str]] = {}
        """Peers to dial, and their addresses."""
        self.on_rebuilt: list[Callable[[], None]] = []
        self._setup, self._protocol, self._book, self._cache = setup, protocol, book, cache
        self._on_refresh = on_refresh
        self._seeds: set[NodeId] = set()
        self._wanted_changed = asyncio.Event()
        self._reported_skew = 0.0
        self._silences = 0
        self._is_stopping = False

    def want(self, addresses: Sequence[PeerAddress], *, are_seeds: bool = False) -> None:
        """Keep dialling these: seeds until shutdown, others until they have failed TRIES times in a row."""
        for address in addresses:
            if address.node == self.node or (address.node not in self.wanted and len(self.wanted) >= MAX_DIALLED):
                continue
            ways = self.wanted.setdefault(address.node, [])
            if address.transport not in ways and len(ways) < MAX_WAYS:
                ways.append(address.transport)
            if are_seeds:
                self._seeds.add(address.node)
        self._wanted_changed.set()

    def table(self) -> set[NodeId]:
        """Nodes in the routing table."""
        return self.session.table() if self.session else set()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Run for the duration of the block, then stop node and daemon in order. Raises StartError."""
        supervisor = None
        try:
            supervisor = asyncio.create_task(self._supervise(await self._build()))
            supervisor.add_done_callback(self._say_failure)
            yield
        finally:
            self._is_stopping = True
            if supervisor is not None:
                supervisor.cancel()
                await asyncio.wait({supervisor})
            await self._close()  # a task cancelled before its first step closes nothing
            self._cache.save()
            self._set_state("stopped")

    def _say_failure(self, supervisor: asyncio.Task[None]) -> None:
        """Log the supervisor's failure. Nobody awaits it before shutdown, and without it the node is off the DHT."""
        if not supervisor.cancelled() and (error := supervisor.exception()) is not None:
            log.error("directory.failed", causes=[repr(error)[:200]])
            self._set_state("down")

    async def _build(self) -> Session:
        self.session = session = await build_session(self._setup, self._protocol)
        try:
            self.addresses = await self._list_addresses(session)
        except TransportError as error:
            await self._close()
            raise StartError(str(error)) from error
        self._set_state("waiting for seeds")
        return session

    async def _close(self) -> None:
        session, self.session = self.session, None
        if session is not None:
            await session.close()

    async def _list_addresses(self, session: Session) -> list[str]:
        return [] if self._setup.client_mode else await session.list_addresses()

    async def _supervise(self, session: Session) -> None:
        """Serve until the daemon dies, rebuild everything, and repeat (pitfalls DHT-02, DHT-04, DHT-06)."""
        loop, deaths = asyncio.get_running_loop(), list[float]()
        while True:
            try:
                await self._serve(session)
            finally:
                await self._close()
            self._set_state("rebuilding")
            log.warning("p2pd.died", code=session.daemon.exit_code, last=list(session.daemon.last_lines)[-3:])
            session = await self._build_again(deaths, loop.time)
            if self._is_stopping:  # hivemind's start can swallow a cancellation
                return
            self.rebuilds += 1
            for callback in self.on_rebuilt:
                loop.call_soon(callback)  # a callback that fails must not stop the supervisor

    async def _build_again(self, deaths: list[float], now: Callable[[], float]) -> Session:
        most, within = REBUILDS
        while True:
            deaths[:] = [death for death in deaths if death > now() - within] + [now()]
            if len(deaths) > most:
                self._set_state("down")
                log.error("directory.down", deaths=len(deaths), within_seconds=within)
            await asyncio.sleep(min(0.1 * 2 ** (len(deaths) - 1), 60.0))
            try:
                return await self._build()
            except StartError as error:
                log.warning("directory.unbuilt", cause=str(error))

    async def _serve(self, session: Session) -> None:
        """Run the background tasks of a session. Returns when the daemon has died."""
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._watch(session))
                group.create_task(self._refresh(session))
                group.create_task(self._dial_all(session, group))
        except* _DaemonDied:
            pass
        except* Exception as failures:  # a bug of ours: log it and start again
            log.error("directory.failed", causes=[repr(cause)[:200] for cause in failures.exceptions])

    async def _watch(self, session: Session) -> None:
        await session.daemon.wait_dead()
        raise _DaemonDied

    async def _dial_all(self, session: Session, group: asyncio.TaskGroup) -> None:
        dialled: dict[NodeId, asyncio.Task[None]] = {}
        while True:
            dialled = {node: task for node, task in dialled.items() if not task.done()}
            for node in list(self.wanted):
                if node not in dialled:
                    dialled[node] = group.create_task(self._keep_in_touch(session, node))
            self._wanted_changed.clear()
            await self._wanted_changed.wait()

    async def _keep_in_touch(self, session: Session, node: NodeId) -> None:
        """Dial one peer and ping it periodically; back off while it does not answer (pitfall BOOT-01)."""
        failures, has_met = 0, False
        while failures < TRIES or node in self._seeds:
            if await self._touch(session, node):
                failures = 0
                if not has_met:
                    has_met = True
                    await session.search(session.node.node_id)
                await asyncio.sleep(TOUCH_SECONDS * random.uniform(0.8, 1.2))
            else:
                await asyncio.sleep(min(0.25 * 2 ** min(failures, 10), _LONGEST_BACK_OFF) * random.uniform(0.7, 1.3))
                failures += 1
        del self.wanted[node]

    async def _touch(self, session: Session, node: NodeId) -> bool:
        ways = list(self.wanted.get(node, ()))
        try:
            await session.connect(node, ways)
        except TransportError as error:
            self._book.note_failure(node, str(error))
            return False
        if not await session.ping(node):
            return False
        for way in ways:
            self._cache.note(PeerAddress(node, way))
        self._set_state("online")
        return True

    async def _refresh(self, session: Session) -> None:
        """Look up keys to find new nodes and drop dead ones (pitfalls BOOT-10, DHT-23), and compare clocks."""
        pause = 1.0
        while True:
            await asyncio.sleep(pause * random.uniform(0.8, 1.2))
            pause = min(pause * 3, REFRESH_SECONDS)
            await session.search(session.node.node_id)
            await session.search(DHTID.from_bytes(os.urandom(20)))
            await self._look_around(session)
            self._on_refresh()
            self._cache.save()
            self._check_clock()
            self._set_state("online" if session.table() else "waiting for seeds")

    async def _look_around(self, session: Session) -> None:
        try:
            self.connected = await session.list_connected()
            self.addresses = await self._list_addresses(session)
            self._silences = 0
            await self._look_from_outside(session)
        except TransportError as error:
            self._silences += 1
            log.warning("p2pd.silent", cause=str(error), times=self._silences)
            if self._silences >= SILENCES:
                session.daemon.kill()

    async def _look_from_outside(self, session: Session) -> None:
        """Find out whether others can dial us. If not, keep no rows for them, as they could
        not read them (pitfall NAT-02)."""
        with contextlib.suppress(OSError, TimeoutError):
            found = await session.daemon.read_reachability()
            if found != self.reachability:
                self.reachability = found
                say = log.warning if found == "private" and not self._setup.client_mode else log.info
                say("directory.reachable" if found == "public" else "directory.hidden", verdict=found)
        session.protocol.hide(self.reachability == "private")

    def _check_clock(self) -> None:
        skew = self._book.median_skew() or 0.0
        if abs(skew - self._reported_skew) <= SKEW_SECONDS:
            return
        self._reported_skew = skew
        if abs(skew) > SKEW_SECONDS:
            log.warning("clock.skewed", peers_ahead_seconds=round(skew, 2), advice="switch time synchronisation on")

    def _set_state(self, state: State) -> None:
        if state != self.state:
            self.state = state
            log.info("directory.state_changed", state=state, dialled=len(self.wanted))
