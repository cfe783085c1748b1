"""Facts that a status page shows of its node: plain values, no secrets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dht.directory import HivemindDirectory
from dht.peers import PeerInfo
from node.actors import Parts

PEERS_LISTED = 64


def facts_of_directory(directory: HivemindDirectory | None) -> dict[str, Any]:
    """State of the DHT, also while it is closed."""
    counts = directory.stats() if directory else {}
    return {
        "directory": directory.state if directory else "closed",
        "reachability": directory.reachability if directory else "unknown",
        "peers": counts.get("table", 0),
        **{f"dht_{name}": count for name, count in counts.items()},
    }


def facts_of_run(parts: Parts) -> dict[str, Any]:
    """Progress of the run, as this node sees it."""
    head, commit = parts.trusted.head, parts.trusted.newest_commit()
    return {
        "run": parts.spec.run_id,
        "step": head.step if head else 0,
        "head_state": head.state if head else "unknown",
        "committed_step": commit.step if commit else -1,
        "term": parts.trusted.term,
        "leader": parts.trusted.leader() or "",
        "relays": len(parts.book()),
        "ledger_down": parts.observer.ledger_down,
        "directory_down": parts.observer.directory_down,
    }


def list_peers(peers: Sequence[PeerInfo]) -> list[dict[str, Any]]:
    """Peers for people and `doctor` (BOOT-11): connected ones first, then the most recently answering."""
    ordered = sorted(peers, key=lambda peer: (not peer.is_connected, -(peer.last_seen or 0.0), peer.node))
    return [
        {
            "node": peer.node,
            "addresses": list(peer.addresses[:4]),
            "connected": peer.is_connected,
            "round_trip": peer.round_trip,
            "skew": peer.skew,
            "reaches_us": peer.reaches_us,
            "failures": peer.failures,
            "last_error": peer.last_error[:120],
        }
        for peer in ordered[:PEERS_LISTED]
    ]
