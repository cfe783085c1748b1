"""Signed rows on a hivemind DHT. A write retries until another peer is seen to hold the row;
a read returns only verified rows.

Knows no message kinds; absence here means "unknown". Staying connected to the DHT is `Upkeep`'s job.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Unpack

from dht.bare import DHTID, DHTNode, PeerID
from dht.envelope import Envelope, to_bytes
from dht.errors import Malformed, TransportError
from dht.identity import NodeId, NodeKey, public_key_of
from dht.locks import locked, reserved_ports
from dht.p2p import Reachability, remove_stale_sockets
from dht.peers import PeerAddress, PeerBook, PeerCache, PeerInfo, parse_peer, parse_peers
from dht.protocol import protocol_for
from dht.record_validator import EnvelopeValidator, wrap
from dht.records import unix_ms
from dht.rows import Keeping, RowStore, newest
from dht.session import Session, Setup
from dht.storage import PackedRow, RowStorage
from dht.turns import let_others_run
from dht.upkeep import State, Upkeep

READ_SECONDS = 10.0
PUBLISH_SECONDS = 12.0


class HivemindDirectory:
    """One node's view of the directory of one run. Created by `open`."""

    def __init__(
        self,
        *,
        node: NodeId,
        setup: Setup,
        run: str,
        limits: Mapping[str, int],
        keeping: Keeping,
        cache: PeerCache,
    ) -> None:
        self.node_id = node
        self._setup = setup
        self._anchors: frozenset[PeerID] = frozenset()
        self._book = PeerBook()
        validator = EnvelopeValidator(run=run, limits=limits)
        self.storage = RowStorage(RowStore(**keeping), validator, unix_ms)
        """Our own rows and those kept for other nodes. They survive a restart of the daemon."""
        self._known = RowStore(**keeping)  # rows read from peers, kept so that later reads still return them
        self._upkeep = Upkeep(
            node=node,
            setup=setup,
            protocol=protocol_for(run=run, book=self._book, storage=self.storage, validator=validator),
            book=self._book,
            cache=cache,
            on_refresh=self._sweep,
        )

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
        client_mode: bool = False,
        peer_cache: Path | None = None,
        state_dir: Path,
        **keeping: Unpack[Keeping],
    ) -> AsyncIterator[HivemindDirectory]:
        """Start the node and yield immediately, whether or not any seed peer answers.

        `limits` is the maximum size in bytes per message kind; `keeping` holds the arguments of `RowStore`. Raises
        StartError, IdentityError, or Malformed when a seed's address does not parse.
        """
        node = NodeKey.load(key_path).node
        cache = PeerCache(peer_cache)
        directory = cls(
            node=node,
            setup=Setup(key_path, tuple(host_maddrs), tuple(announce_maddrs), client_mode),
            run=run,
            limits=limits,
            keeping=keeping,
            cache=cache,
        )
        directory._upkeep.want(parse_peers(initial_peers), are_seeds=True)
        directory._upkeep.want(parse_peers(cache.addresses()), are_seeds=True)
        with contextlib.ExitStack() as locks:
            locks.enter_context(locked(state_dir / "node.lock", f"data folder {state_dir}"))
            if not client_mode:
                locks.enter_context(reserved_ports(host_maddrs))
            remove_stale_sockets()
            async with directory._upkeep.running():
                yield directory

    # -- what roles use

    async def publish(self, row: Envelope) -> None:
        """Store a row at the peers nearest to its key, and read it back from one. Raises TransportError until that is so."""
        session = self._ready()
        sent = PackedRow(DHTID.generate(row.key), row.subkey, wrap(to_bytes(row)), row.expiration / 1000)
        self.storage.put(sent.key, sent.subkey, sent.value, sent.expiration)
        try:
            async with asyncio.timeout(PUBLISH_SECONDS):
                await self._store(session, row, sent)
        except TransportError:
            raise
        except TimeoutError as error:
            raise TransportError("storing the row took too long") from error
        except Exception as error:  # hivemind may raise anything, and the publisher's loop must survive it
            raise TransportError(f"{type(error).__name__}: {error}"[:200]) from error

    async def read(self, keys: Sequence[str]) -> dict[str, list[Envelope]]:
        """Rows under each key, the newest per subkey. Raises TransportError when peers are known and none answers."""
        session = self._ready()
        hashes = {DHTID.generate(key): key for key in keys}
        try:
            async with asyncio.timeout(READ_SECONDS):
                found, is_heard = await session.lookup.read(list(hashes))
        except TimeoutError as error:
            raise TransportError("no peer answered in time") from error
        except Exception as error:  # hivemind may raise anything, and a reader must survive whatever a peer sends
            raise TransportError(f"{type(error).__name__}: {error}"[:200]) from error
        if not is_heard:
            raise TransportError("no peer answered")
        await self._remember(row for rows in found.values() for row in rows)
        now = unix_ms()
        return {key: self._held(key, now) for key in keys}

    async def _remember(self, rows: Iterable[Envelope]) -> None:
        """Store rows read from peers. The signer's membership is checked here, so the loop yields: a peer may send
        thousands of strangers' rows."""
        for number, row in enumerate(rows):
            self._known.put(row, unix_ms())
            await let_others_run(number)

    def _held(self, key: str, now: int) -> list[Envelope]:
        held = [row for store in (self._known, self.storage.rows) for row, _ in store.rows(key, now)]
        return newest(held, now)

    async def _store(self, session: Session, row: Envelope, sent: PackedRow) -> None:
        """Send the row to all its peers. Returns once the first of them is seen to hold it; the other
        sends finish in the background."""
        peers = await session.lookup.replicas(sent.key)
        if not peers:
            raise TransportError("no other node is known yet")
        protocol = session.protocol
        stores = {protocol.start(protocol.send_rows(peer, [sent])): peer for peer in peers}
        pending, verdict = set(stores), "no peer answered"
        while pending:
            done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            for store in done:
                kept = None if store.cancelled() else store.result()
                if kept == [True] and await self._is_held_by(session, stores[store], sent.key, row):
                    return
                if kept is not None:
                    verdict = "no other peer is seen to hold the row yet" if kept == [True] else "peers refused the row"
        raise TransportError(verdict)

    async def _is_held_by(self, session: Session, peer: PeerID, key: DHTID, row: Envelope) -> bool:
        answers = await session.lookup.ask(peer, [key])
        rows = answers[key].rows if answers and key in answers else ()
        return any(held.subkey == row.subkey and held.sequence >= row.sequence for held in rows)

    # -- what the node's own pages and wiring use

    @property
    def node(self) -> DHTNode | None:
        """hivemind's node, for diagnostics; None while the daemon restarts."""
        return self._upkeep.session.node if self._upkeep.session else None

    @property
    def daemon_pid(self) -> int | None:
        """Process id of p2pd; None while it restarts."""
        return self._upkeep.session.daemon.pid if self._upkeep.session else None

    @property
    def state(self) -> State:
        """Connection state. `waiting for seeds` is not an error: dialling continues."""
        return self._upkeep.state

    def addresses(self) -> list[str]:
        """Our full multiaddrs, as peers can dial them; empty in client mode."""
        return list(self._upkeep.addresses)

    def add_peers(self, addresses: Sequence[str]) -> None:
        """Also dial these peers, until they stop answering. Addresses that do not parse are
        ignored, because they come from peers."""
        for text in addresses:
            with contextlib.suppress(Malformed):
                self._upkeep.want([parse_peer(text)])

    def anchor(self, nodes: Iterable[NodeId]) -> None:
        """Also store rows on these nodes, and read from them, wherever they are in the DHT. They are the run's
        operators: nobody can forge their ids to sit nearest to a key and hide its rows. Raises
        Malformed for an invalid node id."""
        self._anchors = frozenset(PeerID.from_base58(node) for node in nodes if public_key_of(node))

    def peers(self) -> list[PeerInfo]:
        """Every known peer: dialled, in the routing table, or heard from (pitfalls BOOT-11, DHT-30)."""
        table = self._upkeep.table()
        nodes = {info.node for info in self._book.all()} | set(self._upkeep.wanted) | table
        return [
            replace(
                self._book.get(node),
                addresses=tuple(str(PeerAddress(node, way)) for way in self._upkeep.wanted.get(node, ())),
                is_in_table=node in table,
                is_connected=node in self._upkeep.connected,
            )
            for node in sorted(nodes)
        ]

    def on_rebuilt(self, callback: Callable[[], None]) -> None:
        """Register a callback that runs after the daemon died and daemon and node were rebuilt."""
        self._upkeep.on_rebuilt.append(callback)

    @property
    def clock_skew(self) -> float | None:
        """Median of peers' clocks minus ours, in seconds."""
        return self._book.median_skew()

    @property
    def reachability(self) -> Reachability:
        """Whether other nodes can dial us, according to AutoNAT. `private` means that we keep no rows for them."""
        return self._upkeep.reachability

    @property
    def metrics_url(self) -> str | None:
        """URL of p2pd's Prometheus metrics; None while it restarts."""
        session = self._upkeep.session
        return f"http://127.0.0.1:{session.daemon.metrics_port}/metrics" if session else None

    def stats(self) -> dict[str, int]:
        """Counts for metrics: rows and bytes held, outcomes and refusals, calls, rebuilds, routing table size."""
        held = self.storage.rows
        return {
            "rows": len(held),
            "bytes": held.total_bytes,
            "table": len(self._upkeep.table()),
            "rebuilds": self._upkeep.rebuilds,
            "calls": self._upkeep.session.lookup.calls if self._upkeep.session else 0,
            **{f"row_{name}": count for name, count in held.counts.items()},
            "refused_malformed": self.storage.malformed,
        }

    def _sweep(self) -> None:
        self.storage.key_ids()
        self._known.sweep(unix_ms())

    def _ready(self) -> Session:
        if self._upkeep.session is None:
            raise TransportError(f"the DHT is {self.state}")
        self._upkeep.session.lookup.anchors = self._anchors
        return self._upkeep.session
