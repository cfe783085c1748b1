"""Signed rows on a hivemind DHT: publish until another peer was seen to hold a row, read what verifies.

Owns the life of the node on the DHT: daemon, dialling of seeds, table refresh, clock check, rebuilding after a death.
Knows no message kinds; absence here means "unknown".
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import structlog

from dht.bare import DHTID, DHTNode, Multiaddr, PeerID, node_module
from dht.envelope import Envelope, to_bytes
from dht.errors import TransportError
from dht.identity import NodeId, NodeKey
from dht.lookup import Lookup
from dht.p2p import Daemon, StartError, locked, remove_stale_sockets, reserved_ports, start_daemon
from dht.peers import PeerAddress, PeerBook, PeerCache, PeerInfo, parse_peer, parse_peers
from dht.protocol import CALL_SECONDS, RowProtocol, place_of_peer, protocol_for
from dht.record_validator import EnvelopeValidator, wrap
from dht.records import unix_ms
from dht.rows import Membership, RowGate, RowStore, everyone, newest
from dht.storage import RowStorage

State = Literal["starting", "waiting for seeds", "online", "rebuilding", "down", "stopped"]

REPLICAS = 5
READ_SECONDS = 10.0
PUBLISH_SECONDS = 12.0
DIAL_SECONDS = 5.0
SEARCH_SECONDS = 15.0
TOUCH_SECONDS = 30.0  # seeds are pinged again this often, for ever (pitfall BOOT-09)
REFRESH_SECONDS = 30.0
MAX_DIALLED = 512
SKEW_SECONDS = 1.0  # reported from here on; hivemind's own limit is 3
REBUILDS = (10, 600.0)  # this many in so many seconds is "down"
SILENCES = 3  # refreshes in which a daemon may leave our questions open before it is ended
_LONGEST_BACK_OFF = 30.0

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class _Setup:
    """What `open` was given."""

    key_path: Path
    host_maddrs: tuple[str, ...]
    announce_maddrs: tuple[str, ...]
    client_mode: bool


@dataclass(frozen=True, slots=True)
class _Session:
    """One daemon and the node on it; replaced as a whole when the daemon dies."""

    daemon: Daemon
    node: DHTNode
    lookup: Lookup

    @property
    def protocol(self) -> RowProtocol:
        """The remote calls."""
        protocol: RowProtocol = self.node.protocol
        return protocol

    async def close(self) -> None:
        """Node first, then daemon. Never hangs: a dead daemon is not asked (pitfall DHT-04)."""
        if self.daemon._child.returncode is None:
            with contextlib.suppress(Exception):  # whatever the daemon says now, it ends
                async with asyncio.timeout(3):
                    await self.node.shutdown()
        else:
            self.protocol.abandon()
        await self.daemon.stop()


class _DaemonDied(Exception):
    """p2pd ended by itself."""


class HivemindDirectory:
    """The directory of one run as one node sees it. Made by `open`."""

    def __init__(
        self,
        *,
        node: NodeId,
        setup: _Setup,
        run: str,
        limits: Mapping[str, int],
        lifetimes: Mapping[str, int],
        membership: Membership,
        cache: PeerCache,
    ) -> None:
        self.node_id = node
        self.state: State = "starting"
        self.rebuilds = 0
        self._setup, self._cache, self._run = setup, cache, run
        self._book = PeerBook()
        self._validator = EnvelopeValidator(run=run, limits=limits, gate=RowGate(run=run, limits=limits))
        self._storage = RowStorage(RowStore(lifetimes=lifetimes, membership=membership), self._validator, unix_ms)
        self._known = RowStore(lifetimes=lifetimes, membership=everyone)  # rows read: what was seen stays seen
        self._wanted: dict[NodeId, list[str]] = {}  # whom to dial, and by which ways
        self._wanted_changed = asyncio.Event()
        self._session: _Session | None = None
        self._connected: set[NodeId] = set()
        self._addresses: list[str] = []
        self._on_rebuilt: list[Callable[[], None]] = []
        self._reported_skew = 0.0
        self._silences = 0

    @classmethod
    @asynccontextmanager
    async def open(
        cls,
        *,
        key_path: Path,
        host_maddrs: Sequence[str],
        announce_maddrs: Sequence[str] = (),
        initial_peers: Sequence[str],
        run: str,
        limits: Mapping[str, int],
        lifetimes: Mapping[str, int],
        membership: Membership = everyone,
        client_mode: bool = False,
        peer_cache: Path | None = None,
        state_dir: Path,
    ) -> AsyncIterator[HivemindDirectory]:
        """Start the node and yield at once, whether or not any seed answers.

        `limits`: bytes by kind; `lifetimes`: seconds by kind. Raises StartError, IdentityError, Malformed (a seed's text).
        """
        node = NodeKey.load(key_path).node
        cache = PeerCache(peer_cache)
        directory = cls(
            node=node,
            setup=_Setup(key_path, tuple(host_maddrs), tuple(announce_maddrs), client_mode),
            run=run,
            limits=limits,
            lifetimes=lifetimes,
            membership=membership,
            cache=cache,
        )
        directory._want(parse_peers(initial_peers))
        directory._want(parse_peers(cache.addresses()))
        with contextlib.ExitStack() as locks:
            locks.enter_context(locked(state_dir / "node.lock", f"data folder {state_dir}"))
            if not client_mode:
                locks.enter_context(reserved_ports(host_maddrs))
            remove_stale_sockets()
            async with directory._running():
                yield directory

    # -- what roles use

    async def publish(self, row: Envelope) -> None:
        """Store a row at the peers nearest to its key, and read it back from one. Raises TransportError until that is so."""
        session = self._ready()
        value, expiration = wrap(to_bytes(row)), row.expiration / 1000
        key = DHTID.generate(row.key)
        self._storage.store_subkey(key, row.subkey, value, expiration)
        try:
            async with asyncio.timeout(PUBLISH_SECONDS):
                await self._store(session, key, row, value)
        except TimeoutError as error:
            raise TransportError("storing the row took too long") from error

    async def read(self, keys: Sequence[str]) -> dict[str, list[Envelope]]:
        """Rows under each key, newest of each subkey. Raises TransportError when peers are known and none answers."""
        session = self._ready()
        hashes = {DHTID.generate(key): key for key in keys}
        try:
            async with asyncio.timeout(READ_SECONDS):
                found, is_heard = await session.lookup.read(list(hashes))
        except TimeoutError as error:
            raise TransportError("no peer answered in time") from error
        if not is_heard:
            raise TransportError("no peer answered")
        now = unix_ms()
        for rows in found.values():
            for row in rows:
                self._known.put(row, now)
        return {key: self._held(key, now) for key in keys}

    def _held(self, key: str, now: int) -> list[Envelope]:
        held = [row for store in (self._known, self._storage.rows) for row, _ in store.rows(key, now)]
        return newest(held, now)

    async def _store(self, session: _Session, key: DHTID, row: Envelope, value: bytes) -> None:
        """Send the row to all its peers; done when the first of them shows it. The others finish in their own time."""
        peers = await session.lookup.nearest(key)
        if not peers:
            raise TransportError("no other node is known yet")
        protocol, times = session.protocol, row.expiration / 1000
        stores = {
            protocol.start(protocol.call_store(peer, [key], [value], times, [row.subkey])): peer for peer in peers
        }
        pending, verdict = set(stores), "no peer answered"
        while pending:
            done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            for store in done:
                kept = None if store.cancelled() else store.result()
                if kept == [True] and await self._is_held_by(session, stores[store], key, row):
                    return
                if kept is not None:
                    verdict = "no other peer is seen to hold the row yet" if kept == [True] else "peers refused the row"
        raise TransportError(verdict)

    async def _is_held_by(self, session: _Session, peer: PeerID, key: DHTID, row: Envelope) -> bool:
        answers = await session.lookup.ask(peer, [key])
        rows = answers[key].rows if answers and key in answers else ()
        return any(held.subkey == row.subkey and held.sequence >= row.sequence for held in rows)

    # -- what the node's own pages and wiring use

    @property
    def node(self) -> DHTNode | None:
        """hivemind's node, for diagnosis; None while the daemon is being started again."""
        return self._session.node if self._session else None

    def addresses(self) -> list[str]:
        """Our full multiaddrs, as peers may dial them; none in client mode."""
        return [] if self._setup.client_mode else list(self._addresses)

    def add_peers(self, addresses: Sequence[str]) -> None:
        """Dial these too, for ever. What does not parse is ignored: it comes from peers."""
        for text in addresses:
            with contextlib.suppress(Exception):
                self._want([parse_peer(text)])

    def peers(self) -> list[PeerInfo]:
        """Everyone we know of: dialled, in the table, or heard from (pitfalls BOOT-11, DHT-30)."""
        table = self._table()
        nodes = {info.node for info in self._book.all()} | set(self._wanted) | table
        return [
            replace(
                self._book.get(node),
                addresses=tuple(str(PeerAddress(node, way)) for way in self._wanted.get(node, ())),
                is_in_table=node in table,
                is_connected=node in self._connected,
            )
            for node in sorted(nodes)
        ]

    def on_rebuilt(self, callback: Callable[[], None]) -> None:
        """Call this after the daemon died and everything was built again."""
        self._on_rebuilt.append(callback)

    @property
    def clock_skew(self) -> float | None:
        """Median of peers' clocks minus ours, in seconds."""
        return self._book.median_skew()

    def stats(self) -> dict[str, int]:
        """Counts for metrics: rows and bytes held, outcomes and refusals, calls, rebuilds, size of the table."""
        held = self._storage.rows
        return {
            "rows": len(held),
            "bytes": held.total_bytes,
            "table": len(self._table()),
            "rebuilds": self.rebuilds,
            "calls": self._session.lookup.calls if self._session else 0,
            **{f"row_{name}": count for name, count in held.counts.items()},
            **{f"refused_{name}": count for name, count in self._storage.refusals.items()},
        }

    # -- the life of the node

    @asynccontextmanager
    async def _running(self) -> AsyncIterator[None]:
        session = await self._build()
        supervisor = asyncio.create_task(self._supervise(session))
        try:
            yield
        finally:
            supervisor.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await supervisor
            self._cache.save()
            self._set_state("stopped")

    async def _build(self) -> _Session:
        setup = self._setup
        daemon = await start_daemon(
            key_path=setup.key_path,
            host_maddrs=setup.host_maddrs,
            announce_maddrs=setup.announce_maddrs,
            client_mode=setup.client_mode,
        )
        try:
            async with asyncio.timeout(10):
                node = await self._build_node(daemon)
                if not setup.client_mode:
                    self._addresses = [str(address) for address in await daemon.get_visible_maddrs(latest=True)]
        except Exception as error:
            await daemon.stop()
            raise StartError(f"the DHT node did not start: {error}") from error
        self._session = _Session(daemon, node, Lookup(node))
        self._set_state("waiting for seeds")
        return self._session

    async def _build_node(self, daemon: Daemon) -> DHTNode:
        # hivemind takes the protocol's class from its module, before its first await: no other directory comes between
        node_module.DHTProtocol = protocol_for(
            run=self._run, book=self._book, storage=self._storage, validator=self._validator
        )
        return await DHTNode.create(
            p2p=daemon,
            node_id=place_of_peer(daemon.peer_id),
            num_replicas=REPLICAS,
            wait_timeout=CALL_SECONDS,
            parallel_rpc=64,
            cache_locally=False,
            cache_nearest=0,
            cache_on_store=False,
            cache_size=1,
            cache_refresh_before_expiry=0,
            client_mode=self._setup.client_mode,
            record_validator=self._validator,
            ensure_bootstrap_success=False,
            strict=False,
        )

    async def _supervise(self, session: _Session) -> None:
        """Serve until the daemon dies, build everything again, and so on (pitfalls DHT-02, DHT-04, DHT-06)."""
        loop, deaths = asyncio.get_running_loop(), list[float]()
        while True:
            try:
                await self._serve(session)
            finally:
                self._session = None
                await session.close()
            self._set_state("rebuilding")
            log.warning("p2pd.died", code=session.daemon._child.returncode, last=list(session.daemon.last_lines)[-3:])
            session = await self._build_again(deaths, loop.time)
            self.rebuilds += 1
            for callback in self._on_rebuilt:
                asyncio.get_running_loop().call_soon(callback)  # a callback that fails is no fault of the directory

    async def _build_again(self, deaths: list[float], now: Callable[[], float]) -> _Session:
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

    async def _serve(self, session: _Session) -> None:
        """Returns when the daemon has died."""
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._watch(session))
                group.create_task(self._refresh(session))
                group.create_task(self._dial_all(session, group))
        except* _DaemonDied:
            pass
        except* Exception as failures:  # a fault of ours: start again, and say it
            log.error("directory.failed", causes=[repr(cause)[:200] for cause in failures.exceptions])

    async def _watch(self, session: _Session) -> None:
        await session.daemon.wait_dead()
        raise _DaemonDied

    async def _dial_all(self, session: _Session, group: asyncio.TaskGroup) -> None:
        dialled: set[NodeId] = set()
        while True:
            for node in [node for node in self._wanted if node not in dialled]:
                dialled.add(node)
                group.create_task(self._keep_in_touch(session, node))
            self._wanted_changed.clear()
            await self._wanted_changed.wait()

    async def _keep_in_touch(self, session: _Session, node: NodeId) -> None:
        """Dial one peer, ping it again and again; while it is dead, ever more seldom (pitfall BOOT-01)."""
        back_off, has_met = 0.25, False
        while True:
            if await self._touch(session, node):
                back_off = 0.25
                if not has_met:
                    has_met = True
                    await self._search(session, session.node.node_id)
                await asyncio.sleep(TOUCH_SECONDS * random.uniform(0.8, 1.2))
            else:
                await asyncio.sleep(back_off * random.uniform(0.7, 1.3))
                back_off = min(back_off * 2, _LONGEST_BACK_OFF)

    async def _touch(self, session: _Session, node: NodeId) -> bool:
        peer, ways = PeerID.from_base58(node), list(self._wanted.get(node, ()))
        try:
            async with asyncio.timeout(DIAL_SECONDS):
                await session.daemon._client.connect(peer, [Multiaddr(way) for way in ways])
        except Exception as error:  # p2pd's texts are kept for `status`
            self._book.note_failure(node, f"{type(error).__name__}: {error}")
            return False
        if await session.protocol.call_ping(peer, validate=True) is None:
            return False
        for way in ways:
            self._cache.note(PeerAddress(node, way))
        self._set_state("online")
        return True

    async def _refresh(self, session: _Session) -> None:
        """Look up places to meet new nodes and drop dead ones (pitfalls BOOT-10, DHT-23), and look at the clock."""
        pause = 1.0
        while True:
            await asyncio.sleep(pause * random.uniform(0.8, 1.2))
            pause = min(pause * 3, REFRESH_SECONDS)
            await self._search(session, session.node.node_id)
            await self._search(session, DHTID.from_bytes(os.urandom(20)))
            await self._look_around(session)
            self._storage.key_ids()
            self._known.sweep(unix_ms())
            self._cache.save()
            self._check_clock()
            self._set_state("online" if self._table() else "waiting for seeds")

    async def _search(self, session: _Session, place: DHTID) -> None:
        with contextlib.suppress(Exception):  # a search that fails is done again
            async with asyncio.timeout(SEARCH_SECONDS):
                await session.node.find_nearest_nodes([place])

    async def _look_around(self, session: _Session) -> None:
        try:
            async with asyncio.timeout(DIAL_SECONDS):
                self._connected = {info.peer_id.to_base58() for info in await session.daemon.list_peers()}
                if not self._setup.client_mode:
                    self._addresses = [str(address) for address in await session.daemon.get_visible_maddrs(latest=True)]
        except Exception:  # hivemind raises anything here
            self._silences += 1
            if self._silences >= SILENCES:
                log.warning("p2pd.silent", seconds=DIAL_SECONDS, times=self._silences)
                session.daemon.kill()
        else:
            self._silences = 0

    def _check_clock(self) -> None:
        skew = self._book.median_skew() or 0.0
        is_news = abs(skew - self._reported_skew) > SKEW_SECONDS
        if is_news and abs(skew) > SKEW_SECONDS:
            log.warning(
                "clock.skewed", ours_is_behind_by_seconds=round(skew, 2), advice="switch time synchronisation on"
            )
        if is_news:
            self._reported_skew = skew

    def _want(self, addresses: Sequence[PeerAddress]) -> None:
        for address in addresses:
            ways = self._wanted.setdefault(address.node, []) if len(self._wanted) < MAX_DIALLED else []
            if address.transport not in ways and len(ways) < 8:
                ways.append(address.transport)
        self._wanted.pop(self.node_id, None)
        self._wanted_changed.set()

    def _table(self) -> set[NodeId]:
        if self._session is None:
            return set()
        return {peer.to_base58() for peer in self._session.protocol.routing_table.uid_to_peer_id.values()}

    def _ready(self) -> _Session:
        if self._session is None:
            raise TransportError(f"the DHT is {self.state}")
        return self._session

    def _set_state(self, state: State) -> None:
        if state != self.state:
            self.state = state
            log.info("directory.state_changed", state=state, dialled=len(self._wanted))
