"""The records that an audit reads: manifests and blobs by digest. Each is requested once; absence is remembered."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path

from dht.encoding import decode, sha256
from dht.envelope import Envelope
from dht.errors import Malformed, NodeError
from ledger.records import Commit
from node.audit.report import AuditFailed
from roles.messages import CheckpointManifest
from roles.ports import Relays
from roles.spec import RunSpec

PATIENCE = 120.0


class Records:
    """A run's records as relays serve them, each fetched once."""

    def __init__(self, relays: Relays, home: Path) -> None:
        self._relays, self._home = relays, home
        self._manifests: dict[str, Envelope | None] = {}
        self._policies: dict[str, Path | None] = {}

    async def blob(self, digest: str, *, limit: int) -> bytes | None:
        """The blob with this digest; None when no relay has it."""
        try:
            async with asyncio.timeout(PATIENCE):
                data = await self._relays.get(digest, limit=limit)
        except (NodeError, TimeoutError):
            return None
        return data if sha256(data) == digest else None

    async def manifest(self, digest: str) -> Envelope | None:
        """The signed manifest of a checkpoint; None when no relay has one signed by a trainer of the run."""
        if digest not in self._manifests:
            try:
                async with asyncio.timeout(PATIENCE):
                    self._manifests[digest] = await self._relays.fetch_manifest(digest)
            except (NodeError, TimeoutError):
                self._manifests[digest] = None
        return self._manifests[digest]

    async def published(self, spec: RunSpec, commits: Mapping[int, Commit]) -> dict[int, int]:
        """Size in bytes of each committed checkpoint whose manifest is available. The
        base model's comes from the spec."""
        found = {0: sum(file.size for file in spec.model.files)}
        for step, commit in commits.items():
            envelope = await self.manifest(commit.manifest)
            if envelope is not None:
                found[step] = sum(file.size for file in parse_manifest(envelope).files)
        return found

    async def policy(self, digest: str) -> Path | None:
        """A checkpoint in a local folder, every byte verified; None when no relay has it."""
        if digest not in self._policies:
            try:
                self._policies[digest] = await self._relays.fetch_checkpoint(digest, self._home)
            except (NodeError, TimeoutError):
                self._policies[digest] = None
        return self._policies[digest]


def parse_manifest(envelope: Envelope) -> CheckpointManifest:
    """Parse the manifest in an envelope. Raises AuditFailed."""
    try:
        return decode(CheckpointManifest, envelope.payload)
    except Malformed as error:
        raise AuditFailed(f"manifest {envelope.digest[:12]}", str(error)) from error
