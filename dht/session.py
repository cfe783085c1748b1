"""One daemon and the DHT node on it: built together, closed together, replaced together. Knows no rows."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dht.bare import DHTID, DHTNode, Multiaddr, PeerID, node_module
from dht.errors import TransportError
from dht.identity import NodeId
from dht.locks import StartError
from dht.lookup import Lookup
from dht.p2p import Daemon, start_daemon
from dht.places import place_of_peer
from dht.protocol import CALL_SECONDS, RowProtocol

REPLICAS = 5
DIAL_SECONDS = 5.0
SEARCH_SECONDS = 15.0
_BUILD_SECONDS = 10.0
_LEAVE_SECONDS = 3.0


@dataclass(frozen=True, slots=True)
class Setup:
    """How a node listens. In client mode it does not listen."""

    key_path: Path
    host_maddrs: tuple[str, ...]
    announce_maddrs: tuple[str, ...]
    client_mode: bool


@dataclass(frozen=True, slots=True)
class Session:
    """A running daemon and its DHT node. Every call here takes bounded time."""

    daemon: Daemon
    node: DHTNode
    lookup: Lookup

    @property
    def protocol(self) -> RowProtocol:
        """The remote calls."""
        protocol: RowProtocol = self.node.protocol
        return protocol

    def table(self) -> set[NodeId]:
        """Nodes in the routing table."""
        return {peer.to_base58() for peer in self.protocol.routing_table.uid_to_peer_id.values()}

    async def connect(self, node: NodeId, ways: Sequence[str]) -> None:
        """Dial a peer. Raises TransportError with p2pd's message."""
        try:
            async with asyncio.timeout(DIAL_SECONDS):
                await self.daemon.connect(PeerID.from_base58(node), [Multiaddr(way) for way in ways])
        except Exception as error:  # hivemind may raise anything
            raise TransportError(f"{type(error).__name__}: {error}") from error

    async def ping(self, node: NodeId) -> bool:
        """Whether a peer answers, and belongs to our run."""
        return await self.protocol.call_ping(PeerID.from_base58(node), validate=True) is not None

    async def search(self, place: DHTID) -> None:
        """Search for the nodes nearest to a place; the routing table learns from the responses."""
        with contextlib.suppress(TimeoutError):  # a failed search is repeated later
            async with asyncio.timeout(SEARCH_SECONDS):
                await self.lookup.search(place, count=1, width=self.protocol.bucket_size)

    async def list_connected(self) -> set[NodeId]:
        """Nodes with an open connection to the daemon. Raises TransportError when the daemon does not answer."""
        try:
            async with asyncio.timeout(DIAL_SECONDS):
                return {peer.to_base58() for peer in await self.daemon.connected_peers()}
        except Exception as error:  # hivemind may raise anything
            raise TransportError(f"p2pd does not answer: {error}") from error

    async def list_addresses(self) -> list[str]:
        """Our own full addresses. Raises TransportError when the daemon does not answer."""
        try:
            async with asyncio.timeout(DIAL_SECONDS):
                return [f"{address}/p2p/{self.daemon.peer_id}" for address in await self.daemon.own_addresses()]
        except Exception as error:  # hivemind may raise anything
            raise TransportError(f"p2pd does not answer: {error}") from error

    async def close(self) -> None:
        """Close the node, then the daemon. Never hangs: a dead daemon is not contacted (pitfall DHT-04)."""
        if self.daemon.exit_code is None:
            with contextlib.suppress(Exception):  # the daemon is stopped whatever happens here
                async with asyncio.timeout(_LEAVE_SECONDS):
                    await self.node.shutdown()
        self.protocol.abandon()
        await self.daemon.stop()


async def build_session(setup: Setup, protocol: type[RowProtocol]) -> Session:
    """Start a daemon and a node on it. Raises StartError."""
    daemon = await start_daemon(
        key_path=setup.key_path,
        host_maddrs=setup.host_maddrs,
        announce_maddrs=setup.announce_maddrs,
        client_mode=setup.client_mode,
    )
    node = None
    try:
        async with asyncio.timeout(_BUILD_SECONDS):
            node = await _build_node(daemon, protocol, client_mode=setup.client_mode)
    except Exception as error:  # hivemind may raise anything
        raise StartError(f"the DHT node did not start: {error}") from error
    finally:
        if node is None:  # also when cancelled
            await daemon.stop()
    return Session(daemon, node, Lookup(node))


async def _build_node(daemon: Daemon, protocol: type[RowProtocol], *, client_mode: bool) -> DHTNode:
    # hivemind looks the protocol class up in its module before its first await, so no other directory can interfere
    node_module.DHTProtocol = protocol
    return await DHTNode.create(
        p2p=daemon,
        node_id=place_of_peer(daemon.peer_id),
        num_replicas=REPLICAS,
        wait_timeout=CALL_SECONDS,
        parallel_rpc=64,
        client_mode=client_mode,
    )
