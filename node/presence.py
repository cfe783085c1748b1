"""Publishes a node's own record: announced at the start, renewed while it runs, OFFLINE at the end."""

from __future__ import annotations

import asyncio
import contextlib

import structlog

from dht.errors import TransportError
from node import __version__
from node.actors import Parts
from node.defaults import HEARTBEAT_SECONDS, OFFLINE_SECONDS
from node.hardware import free_disk
from node.health import LoopLag
from node.twin import check_twin
from roles.messages import NodeRecord, nodes_key
from roles.requirements import with_upload

log = structlog.get_logger()


class Presence:
    """`hardware` is the description of the machine shown to others, `lag` measures its load,
    `boot` identifies this start."""

    def __init__(self, parts: Parts, *, hardware: str, lag: LoopLag, boot: str) -> None:
        self._parts, self._hardware, self._lag, self._boot = parts, hardware, lag, boot

    async def keep_up(self, *, http: str) -> None:
        """Announce the record periodically until cancelled. `http` is the relay's URL. Raises TwinFound."""
        voice = self._parts.voice
        first = (await voice.announce(self._record(http=http))).sequence
        while True:
            await asyncio.sleep(HEARTBEAT_SECONDS)
            await self._look_for_twin(first)
            await voice.announce(self._record(http=http))

    async def say_offline(self) -> None:
        """Publish the record as OFFLINE, giving up after `OFFLINE_SECONDS`."""
        try:
            async with asyncio.timeout(OFFLINE_SECONDS):
                await self._parts.voice.announce(self._record(http="", is_online=False), keep_seconds=0)
        except TimeoutError:
            log.info("offline.unsaid")

    async def _look_for_twin(self, first: int) -> None:
        key = nodes_key(self._parts.spec.run_id, self._parts.config.role)
        with contextlib.suppress(TransportError):
            rows = (await self._parts.rows.read([key])).get(key, [])
            check_twin(rows, spec=self._parts.spec, own=self._record(http=""), since=first)

    def _record(self, *, http: str, is_online: bool = True) -> NodeRecord:
        parts = self._parts
        commit = parts.trusted.newest_commit()
        return NodeRecord(
            node=parts.key.node,
            role=parts.config.role,
            addresses=() if parts.config.role == "worker" else tuple(parts.directory.addresses()[:8]),
            http=http,
            software=f"intellect-node/{__version__}",
            hardware=with_upload(self._hardware, parts.relays.link.upload_mbit),
            load_permille=min(1000, int(self._lag.percentile(0.5) * 1000)),
            policy_step=commit.step if commit else 0,
            disk_free=free_disk(parts.config.home),
            boot=self._boot,
            state="online" if is_online else "offline",
        )
