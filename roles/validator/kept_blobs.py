"""Blobs that validators exchange by digest (tallies, evidence). They are read from our disk, or
fetched and stored there."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from pathlib import Path

from dht.disk import make_folder, write_durably
from dht.encoding import sha256
from roles.ports import Relays

FETCH_SECONDS = 20


class KeptBlobs:
    """Blobs in a folder of their own."""

    def __init__(self, relays: Relays, folder: Path, *, limit: int) -> None:
        self._relays, self._folder, self._limit = relays, folder, limit

    async def get(self, digest: str, relays: Sequence[str] = ()) -> bytes:
        """The blob, with its digest verified. Raises TransportError or TimeoutError."""
        held = await asyncio.to_thread(_read, self._folder / digest)
        if held is not None and sha256(held) == digest:
            return held
        async with asyncio.timeout(FETCH_SECONDS):
            blob = await self._relays.get(digest, limit=self._limit, relays=relays)
        await self.keep(digest, blob)
        return blob

    async def put(self, blob: bytes) -> tuple[str, ...]:
        """Store a blob of ours and upload it. Returns the relays that hold it. Raises TransportError."""
        holders = await self._relays.put(blob)
        await self.keep(sha256(blob), blob)
        return holders

    async def keep(self, digest: str, blob: bytes) -> None:
        """Write a blob to disk. Raises OSError."""
        await asyncio.to_thread(_write, self._folder / digest, blob)

    async def keep_only(self, digests: Collection[str]) -> None:
        """Delete all blobs but these."""
        await asyncio.to_thread(_keep_files, self._folder, frozenset(digests))


def _read(path: Path) -> bytes | None:
    return path.read_bytes() if path.is_file() else None


def _write(path: Path, data: bytes) -> None:
    make_folder(path.parent)
    write_durably(path, data)


def _keep_files(folder: Path, names: frozenset[str]) -> None:
    for path in folder.iterdir() if folder.is_dir() else ():
        if path.name not in names:
            path.unlink(missing_ok=True)
