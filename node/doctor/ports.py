"""Whether the configured ports are free, and the announced address is one that others can use (BOOT-08, BOOT-12)."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from dht.errors import Malformed
from dht.locks import StartError, reserved_ports
from dht.peers import check_transport
from node.config import NodeConfig
from node.doctor.finding import Finding, fault, ok, skipped, warning
from node.errors import ConfigError
from node.status.client import read_status

LOOPBACK = ("127.0.0.1", "::1", "localhost")


def examine_ports(config: NodeConfig) -> Iterator[Finding]:
    """DHT, relay HTTP and status port, each separately; then the announced address."""
    if config.role == "worker":
        yield skipped("DHT port", "a worker listens on none")
    else:
        yield check_port("DHT port", config.host, config.port, flag="--port", config=config)
    if config.role == "relay":
        yield check_port("HTTP port", config.host, config.http_port, flag="--http-port", config=config)
    yield check_port("status port", config.status_host, config.status_port, flag="--status-port", config=config)
    if config.role != "worker":
        peers, verdict = _known_peers(config)
        yield check_reached(config, peers, verdict=verdict) or check_announced(config)


def check_port(check: str, host: str, port: int, *, flag: str, config: NodeConfig) -> Finding:
    """A port is free, or held by this folder's own running node."""
    if port == 0:
        return ok(check, "a free one is taken at the start")
    family = "ip6" if ":" in host else "ip4"
    try:
        with reserved_ports([f"/{family}/{host}/tcp/{port}"]):
            return ok(check, f"{host} port {port} is free")
    except StartError as error:
        if is_running(config):
            return ok(check, f"{host} port {port} is in use, and the node of {config.home} runs")
        return fault(check, str(error), f"choose another port by {flag}, or stop that program")


def is_running(config: NodeConfig) -> bool:
    """Whether a node of this data folder answers."""
    try:
        read_status(config.home)
    except ConfigError:
        return False
    return True


def check_announced(config: NodeConfig) -> Finding:
    """The address that others would be told to connect to."""
    if config.host in LOOPBACK and not config.announce:
        fix = "listen for others: --host 0.0.0.0 --port 4001, and --announce /ip4/YOUR-ADDRESS/tcp/4001"
        return warning("reachable", f"{config.host}: only this machine can reach the node", fix)
    for text in config.announce:
        try:
            host, port = check_transport(text.partition("/p2p/")[0])
        except Malformed as error:
            return fault("reachable", str(error), "announce an address like /ip4/203.0.113.7/tcp/4001")
        if _is_private(host) or port == 0:
            fix = "announce the address and port that the router or cloud shows to the world"
            return warning("reachable", f"{text}: nobody outside your network can reach that", fix)
    if config.port == 0:
        return warning(
            "reachable", "the port changes at every start", "name one and open it in the firewall: --port 4001"
        )
    return ok("reachable", f"{', '.join(config.announce) or 'the addresses of the network cards'} are announced")


def check_reached(
    config: NodeConfig, peers: Sequence[Mapping[str, Any]], *, verdict: str = "unknown"
) -> Finding | None:
    """Whether peers of the running node could dial it back (BOOT-08, BOOT-17); None when none has tried.

    `verdict` is AutoNAT's, which uses new connections. The peers' own reports may rest on an existing connection.
    """
    if verdict == "public":
        return ok("reachable", "peers dial this node from outside")
    tried = [peer for peer in peers if peer.get("reaches_us") is not None]
    if verdict == "private":
        tried = [{"reaches_us": False}] * max(1, len(tried))
    if not tried:
        return None
    reached = sum(bool(peer["reaches_us"]) for peer in tried)
    said = f"{reached} of {len(tried)} peers could dial this node back"
    if reached:
        return ok("reachable", said)
    port = config.port or "the DHT's port"
    return warning(
        "reachable", said, f"open TCP {port} in the firewall and router, and announce the outside address: --announce"
    )


def _known_peers(config: NodeConfig) -> tuple[Sequence[Mapping[str, Any]], str]:
    """The peers known to the running node of this data folder, if any, and whether they can dial it."""
    try:
        status = read_status(config.home)
    except ConfigError:
        return (), "unknown"
    peers = [peer for peer in status.get("known_peers", ()) if isinstance(peer, dict)]
    return peers, str(status.get("reachability", "unknown"))


def _is_private(host: str) -> bool:
    try:
        return not ipaddress.ip_address(host).is_global
    except ValueError:
        return False  # a host name
