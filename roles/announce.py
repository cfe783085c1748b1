"""Publishes a node's own messages, each under the key and subkey that its kind prescribes."""

from __future__ import annotations

from collections.abc import Sequence

from dht.encoding import Message, encode
from dht.envelope import Envelope
from roles.messages import ROW_RULES, place_of, subkey_for
from roles.ports import Announcer
from roles.shardcast.grants import hint_of
from roles.spec import RunSpec


class Voice:
    """Signs and publishes the messages of one node in one run."""

    def __init__(self, announcer: Announcer, *, node: str, spec: RunSpec) -> None:
        self.node = node
        self._announcer = announcer
        self._spec = spec
        self._run = spec.run_id

    async def announce(
        self, message: Message, *, relays: Sequence[str] = (), keep_seconds: int | None = None
    ) -> Envelope:
        """Sign, publish and keep republishing. `relays` (node ids) travel as the row's hint, outside its digest."""
        kind = str(getattr(message, "kind"))  # noqa: B009 - every message has one; Message itself does not declare it
        key, _ = place_of(message, run=self._run, buckets=self._spec.buckets)
        return await self._announcer.publish(
            kind=kind,
            record_key=key,
            subkey=subkey_for(message, run=self._run, signer=self.node, buckets=self._spec.buckets),
            payload=encode(message),
            lifetime=ROW_RULES[kind].lifetime,
            hint=hint_of(relays),
            keep_seconds=keep_seconds,
        )

    def withdraw(self, message: Message) -> None:
        """Stop republishing a message."""
        key, _ = place_of(message, run=self._run, buckets=self._spec.buckets)
        self._announcer.withdraw(key, subkey_for(message, run=self._run, signer=self.node, buckets=self._spec.buckets))
