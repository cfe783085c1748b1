"""The version handshake: the run's owner demands a version of this program from a step on; nodes announce it
and obey when the step comes.

A demand is accepted from any node, checked against the account that owns the run on the ledger, stored on disk,
and passed on by every node that listens. Until its step, a node that is too old continues and says so (the
grace period); then it exits.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Sequence
from pathlib import Path

import structlog

from dht.disk import write_durably
from dht.encoding import decode, encode
from dht.envelope import Envelope
from dht.errors import Malformed, NodeError, TransportError
from node import __version__
from node.defaults import UPGRADE_LOOK_SECONDS, UPGRADE_SAY_SECONDS
from roles.announce import Voice
from roles.messages import MESSAGE_VERSION, UpgradeRow, open_row, upgrades_key
from roles.ports import Directory
from roles.trusted import TrustedState
from roles.upgrades import is_met, is_of_owner

log = structlog.get_logger()

MAX_FILE = 4096
JUDGED_AT_ONCE, MAX_JUDGED = 32, 4096
"""Demands whose signature is checked per look, and the number remembered as checked."""


class Outdated(NodeError):
    """This program is too old for the step that the run has reached."""


class Upgrading:
    """One node's part in the handshake. `passes_on`: whether it republishes the newest demand,
    as all roles but workers do."""

    def __init__(
        self,
        trusted: TrustedState,
        rows: Directory,
        voice: Voice,
        *,
        path: Path,
        passes_on: bool,
        software: str = __version__,
        messages: int = MESSAGE_VERSION,
    ) -> None:
        self._trusted, self._rows, self._voice = trusted, rows, voice
        self._path, self._passes_on = path, passes_on
        self._software, self._messages = software, messages
        self._said = float("-inf")
        self._is_published = False
        self._judged: dict[bytes, None] = {}
        self.demand: UpgradeRow | None = None
        """The owner's newest demand."""

    async def run(self) -> None:
        """Look every `UPGRADE_LOOK_SECONDS` until cancelled. Raises Outdated when the demanded step is reached."""
        while True:
            await self.look()
            await asyncio.sleep(UPGRADE_LOOK_SECONDS)

    async def look(self) -> None:
        """Look for demands once. Raises Outdated."""
        if self._trusted.view is None:
            return  # no signature can be checked yet
        if self.demand is None:
            self._admit(await asyncio.to_thread(_read, self._path))
        owner = self._trusted.view.terms.owner
        for row in self._unjudged(await self._hear(), owner):
            demand = self._demand_in(row)
            if demand is not None and self._admit(demand):
                await asyncio.to_thread(self._keep, demand)
        if self.demand is not None:
            await self._pass_on(self.demand)
            self._judge(self.demand)

    @property
    def is_met(self) -> bool:
        """Whether this program meets the newest demand."""
        return self.demand is None or is_met(self.demand, software=self._software, messages=self._messages)

    @property
    def sentence(self) -> str:
        """What is demanded and by when, for people; empty when nothing needs doing."""
        if self.demand is None or self.is_met:
            return ""
        by = f", about {time.strftime('%Y-%m-%d %H:%M', time.gmtime(self.demand.by))} UTC" if self.demand.by else ""
        wanted = f"intellect-node {self.demand.software} (messages {self.demand.messages}) or newer"
        return (
            f"the run needs {wanted} from step {self.demand.step} on{by}; this is {self._software} ({self._messages})"
        )

    async def _hear(self) -> Sequence[Envelope]:
        key = upgrades_key(self._trusted.run)
        try:
            return (await self._rows.read([key])).get(key, ())
        except TransportError:
            return ()

    def _unjudged(self, rows: Sequence[Envelope], owner: str) -> list[Envelope]:
        """Some of the demands that have not been checked yet, members' first. Anybody may pass demands on, and each
        costs a signature check. A checked demand is not checked again, because numbers only rise."""
        new = {_mark(row, owner): row for row in rows}
        unknown = [(mark, row) for mark, row in new.items() if mark not in self._judged]
        unknown.sort(key=lambda item: not self._trusted.is_member(item[1].signer))
        for mark, _ in unknown[:JUDGED_AT_ONCE]:
            self._judged[mark] = None
        while len(self._judged) > MAX_JUDGED:
            del self._judged[next(iter(self._judged))]
        return [row for _, row in unknown[:JUDGED_AT_ONCE]]

    def _demand_in(self, row: Envelope) -> UpgradeRow | None:
        try:
            message = open_row(row, run=self._trusted.run, buckets=1)
        except Malformed:
            return None
        return message if isinstance(message, UpgradeRow) else None

    def _admit(self, demand: UpgradeRow | None) -> bool:
        """Whether this demand is newer than ours, and the owner's. Stores it if so."""
        if demand is None or (self.demand is not None and demand.number <= self.demand.number):
            return False
        view = self._trusted.view
        if view is None or not is_of_owner(demand, self._trusted.spec, view.terms.owner):
            return False
        self.demand, self._is_published, self._said = demand, False, float("-inf")
        log.info("upgrade.heard", software=demand.software, messages=demand.messages, step=demand.step)
        return True

    async def _pass_on(self, demand: UpgradeRow) -> None:
        if self._passes_on and not self._is_published:
            self._is_published = True
            await self._voice.announce(demand)

    def _judge(self, demand: UpgradeRow) -> None:
        if self.is_met:
            return
        if self._trusted.head is not None and self._trusted.head.step >= demand.step:
            raise Outdated(f"{self.sentence}. Install it and start again: keys and state stay as they are")
        if time.monotonic() - self._said >= UPGRADE_SAY_SECONDS:
            self._said = time.monotonic()
            log.warning("upgrade.needed", why=self.sentence)

    def _keep(self, demand: UpgradeRow) -> None:
        try:
            write_durably(self._path, encode(demand))
        except OSError as error:
            log.warning("upgrade.unsaved", why=error.strerror)


def _mark(row: Envelope, owner: str) -> bytes:
    """Identifies a demand as passed on by one node, so that a false copy from one node cannot hide the same demand from
    another. A new owner means a new check."""
    return hashlib.sha256(f"{owner}/{row.signer}/".encode() + row.payload).digest()


def _read(path: Path) -> UpgradeRow | None:
    """The demand stored on disk; None when it is missing or damaged, since other nodes pass it on again."""
    try:
        data = path.read_bytes()
        return decode(UpgradeRow, data) if len(data) <= MAX_FILE else None
    except (OSError, Malformed):
        return None
