"""A node's own status: its phase, its numbers, and a story that is updated only while somebody watches."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any

from dht.directory import HivemindDirectory
from dht.errors import NodeError
from ledger.errors import LedgerError
from node import __version__
from node.actors import Parts
from node.config import NodeConfig
from node.contributions import tally_blobs
from node.defaults import TALLY_LOOK_SECONDS
from node.disk import DiskWatch
from node.errors import ConfigError
from node.health import LoopLag, Uptime
from node.log import EventStream
from node.status.credits import Credits
from node.status.facts import facts_of_directory, facts_of_run, list_peers
from node.status.knowledge import Knowledge
from node.status.metrics import read_daemon_metrics
from node.status.server import status_server
from node.status.story import OF_ONE_NODE, Story
from node.upgrading import Upgrading
from roles.messages import nodes_key


class NodeStatus:
    """The status of a node. The code that composes the node sets `phase` and, once they exist, its parts."""

    def __init__(self, config: NodeConfig, events: EventStream) -> None:
        self._config, self._events = config, events
        self.lag, self.uptime, self.disk = LoopLag(), Uptime(), DiskWatch(config.home, config.max_disk)
        self.phase = "starting"
        self.node = self.hardware = ""
        self.directory: HivemindDirectory | None = None
        self.parts: Parts | None = None
        self.upgrading: Upgrading | None = None
        self._story = Story(limits=OF_ONE_NODE)
        events.listeners.append(lambda event: self._story.take(config.role, event))
        self._knowledge: Knowledge | None = None

    def serve(self) -> AbstractAsyncContextManager[int]:
        """Serve the status page for the duration of the block; yields its port. Raises
        ConfigError when the port is taken."""
        self._story.describe(kind="node", role=self._config.role, node=self.node, phase=self.phase)
        return status_server(
            self._config.status_port,
            self.plain,
            story=self._story,
            refresh=self._refresh,
            more_metrics=self._daemon_metrics,
            host=self._config.status_host,
        )

    async def watch_tallies(self, parts: Parts) -> None:
        """Add final tallies to the story, only while somebody watches: their blobs grow with the run's activity."""
        credits = Credits(self._story, parts.spec)
        while True:
            await asyncio.sleep(TALLY_LOOK_SECONDS)
            if self._knowledge is not None and self._knowledge.is_watched:
                with contextlib.suppress(NodeError, LedgerError, ConfigError):
                    await credits.tell_all(parts.ledger, tally_blobs(parts.relays))

    def plain(self) -> Mapping[str, Any]:
        """What `status --json` shows: plain values, no secrets."""
        known: dict[str, Any] = {
            "node": self.node,
            "role": self._config.role,
            "phase": self.phase,
            "version": __version__,
            "hardware": self.hardware,
            "uptime_seconds": round(self.uptime.seconds, 1),
            "memory_peak_bytes": self.uptime.peak_bytes,
            "disk_used_bytes": self.disk.used,
            "disk_budget_bytes": self._config.max_disk,
            "loop_lag_p50_seconds": round(self.lag.percentile(0.5), 4),
            "loop_lag_p99_seconds": round(self.lag.percentile(0.99), 4),
            "loop_lag_max_seconds": round(self.lag.worst, 4),
            **facts_of_directory(self.directory),
        }
        if self.parts is not None:
            known |= facts_of_run(self.parts)
            key = nodes_key(self.parts.spec.run_id, self._config.role)
            known["published"] = self.parts.publisher.is_confirmed(key, self.parts.key.node)
            known["upgrade"] = self.upgrading.sentence if self.upgrading else ""
            known["unconfirmed_rows"] = self.parts.publisher.unconfirmed
        return known | {
            "known_peers": list_peers(self.directory.peers()) if self.directory else [],
            "events": dict(self._events.counts),
            "recent": list(self._events.recent),
        }

    def _refresh(self) -> None:
        if self._knowledge is None and self.parts is not None:
            self._knowledge = Knowledge(self._story, self.parts.trusted, self.parts.book)
        if self._knowledge is not None:
            self._knowledge.refresh()
        self._story.describe(phase=self.phase)

    async def _daemon_metrics(self) -> str:
        if self.parts is None:
            return ""
        return await read_daemon_metrics(self.parts.directory.metrics_url, self.parts.http)
