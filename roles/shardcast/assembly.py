"""A checkpoint being assembled on disk: shards in any order, each verified on arrival, resumable after a kill.

`into/.partial-{digest}/files` grows until every shard is right. It is then synced, if requested, and renamed
to `into/{digest}`. Without the sync a power cut may damage what was renamed, so nodes hash it again before
they use it after a start. The journal beside it lists the shards verified so far; a restart hashes those again
and fetches only the others.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import threading
from collections.abc import Callable, Collection
from contextlib import suppress
from io import FileIO
from pathlib import Path
from threading import Lock
from types import TracebackType
from typing import Self

from dht.disk import make_folder, sync, write_durably
from dht.encoding import ZERO_DIGEST
from dht.envelope import Envelope, from_bytes, to_bytes
from dht.errors import PeerError
from dht.identity import NodeId
from roles.messages import CheckpointManifest
from roles.shardcast.blobs import write_all
from roles.shardcast.disk import reserve_room
from roles.shardcast.errors import StoreFull, WrongBytes
from roles.shardcast.manifest import MAX_MANIFEST_BYTES, Sharded, check_manifest, manifest_digest
from roles.shardcast.shards import Layout, Piece, is_checkpoint_intact, is_shard_intact

MANIFEST_FILE = ".manifest"
SYNC_EVERY = 64 * 10**6
"""Number of verified bytes after which a thread syncs the files."""
SCRATCH = ".deltas"
"""Folder beside the checkpoints for deltas and intermediate checkpoints, by the checkpoint they lead to."""


class Assembly:
    """All calls block: run them in a thread. `open` takes the lock; `finish`, `discard` or `close` releases it."""

    def __init__(
        self,
        into: Path,
        envelope: Envelope,
        manifest: Sharded,
        *,
        progress: Callable[[int, int], None] | None = None,
        is_durable: bool = True,
    ) -> None:
        self.digest = manifest_digest(envelope)
        self.layout = Layout(manifest)
        self.final = into / self.digest
        self.scratch = into / SCRATCH / self.digest
        self._partial = into / f".partial-{self.digest}"
        self.files = self._partial / "files"
        self._envelope, self._progress, self._is_durable = envelope, progress, is_durable
        self._lock, self._closing = -1, threading.Lock()
        self._syncing, self._unsynced = threading.Lock(), 0
        self.missing: set[int] = set(range(len(manifest.shards)))

    def open(self) -> bool:
        """Take the lock, create the files, read the journal. Returns False when another process assembles this
        checkpoint (WGT-06)."""
        try:
            if self._is_durable:
                make_folder(self.final.parent)
            self.files.mkdir(parents=True, exist_ok=True)
            self._lock = os.open(self._partial / "lock", os.O_RDWR | os.O_CREAT, 0o644)
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._make_files()
        except BlockingIOError:
            self.close()
            return False
        except OSError as error:
            self.close()
            raise StoreFull(f"cannot write a checkpoint under {self.final.parent}: {error.strerror}") from error
        self._resume()
        self._say()
        return True

    def close(self) -> None:
        """Release the lock. What is verified is kept for the next time."""
        with self._closing:  # a cancelled fetch closes while its thread may still be finishing
            lock, self._lock = self._lock, -1
        if lock >= 0:
            os.close(lock)

    def writer(self, index: int) -> ShardWriter:
        """A sink for one shard."""
        return ShardWriter(self, index)

    def mark(self, index: int) -> None:
        """Record a shard as verified, in the journal too."""
        with (self._partial / "journal").open("a") as journal:
            journal.write(f"{index}\n")
        self.missing.discard(index)
        self._say()
        if self._is_durable:
            self._sync_now_and_then(self.layout.size(index))

    def finish(self) -> Path:
        """Move the checkpoint into place, synced if it is to be durable. Raises ValueError while a shard is missing."""
        if self.missing:
            raise ValueError(f"{len(self.missing)} shards are missing still")
        try:
            if self._is_durable:
                self._sync_files()
                write_durably(self.files / MANIFEST_FILE, to_bytes(self._envelope))
            else:
                (self.files / MANIFEST_FILE).write_bytes(to_bytes(self._envelope))
            os.rename(self.files, self.final)  # CKPT-10
            if self._is_durable:
                sync(self.final.parent)
        except OSError as error:
            raise StoreFull(f"cannot move a checkpoint into {self.final}: {error.strerror}") from error
        self.discard()
        return self.final

    def discard(self) -> None:
        """Release the lock and delete what was fetched so far."""
        self.close()
        shutil.rmtree(self._partial, ignore_errors=True)

    def _say(self) -> None:
        if self._progress is not None:
            missing = sum(self.layout.size(index) for index in tuple(self.missing))
            self._progress(self.layout.total - missing, self.layout.total)

    def _sync_now_and_then(self, size: int) -> None:
        """Sync every `SYNC_EVERY` bytes, so that little is left for the end. Only one thread at a time does so."""
        self._unsynced += size
        if self._unsynced >= SYNC_EVERY and self._syncing.acquire(blocking=False):
            try:
                self._unsynced = 0
                self._sync_files()
            finally:
                self._syncing.release()

    def _sync_files(self) -> None:
        for file in self.layout.manifest.files:
            with (self.files / file.name).open("rb") as handle:
                os.fsync(handle.fileno())

    def _make_files(self) -> None:
        for file in self.layout.manifest.files:
            descriptor = os.open(self.files / file.name, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644)
            try:
                if os.fstat(descriptor).st_size != file.size:
                    os.ftruncate(descriptor, file.size)
                reserve_room(descriptor, file.size)
            finally:
                os.close(descriptor)

    def _resume(self) -> None:
        with suppress(OSError):
            for line in (self._partial / "journal").read_text(errors="replace").splitlines():
                index = int(line) if line.isascii() and line.isdigit() and len(line) < 8 else -1
                if index in self.missing and is_shard_intact(self.files, self.layout, index):
                    self.missing.discard(index)


class ShardWriter:
    """Sink of one shard: bytes go straight to their place in the files, but count only once the digest is right."""

    def __init__(self, assembly: Assembly, index: int) -> None:
        self._assembly, self._index = assembly, index
        self._size = assembly.layout.size(index)
        self._written, self._hash = 0, hashlib.sha256()
        self._files: dict[str, FileIO] = {}
        self._lock, self._is_closed = Lock(), False  # a thread may still be writing when its fetch is cancelled

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._lock:
            self._is_closed = True
            for file in self._files.values():
                file.close()

    def take(self, block: bytes | bytearray | memoryview) -> None:
        """Write bytes. Raises WrongBytes once there are more than the shard has, StoreFull on a disk error."""
        view = memoryview(block)
        if self._written + len(view) > self._size:
            raise WrongBytes("relay sends more than the shard has")
        with self._lock:
            self._take(view)
        self._written += len(block)

    def _take(self, view: memoryview) -> None:
        if self._is_closed:
            return
        self._hash.update(view)
        try:
            for piece in self._assembly.layout.pieces(self._index, skip=self._written, length=len(view)):
                self._place(piece, view[: piece.length])
                view = view[piece.length :]
        except OSError as error:
            raise StoreFull(f"cannot write a checkpoint: {error.strerror}") from error

    def commit(self) -> None:
        """Count the shard as verified. Raises WrongBytes unless its digest is right."""
        assembly = self._assembly
        if self._written != self._size or self._hash.hexdigest() != assembly.layout.manifest.shards[self._index]:
            raise WrongBytes("shard does not have the digest the manifest names")  # WGT-04
        try:
            assembly.mark(self._index)
        except OSError as error:
            raise StoreFull(f"cannot write a checkpoint: {error.strerror}") from error

    def _place(self, piece: Piece, view: memoryview) -> None:
        file = self._files.get(piece.name)
        if file is None:
            file = self._files[piece.name] = (self._assembly.files / piece.name).open("r+b", buffering=0)
        file.seek(piece.offset)
        write_all(file, view)


def load_checkpoint_manifest(
    directory: Path, *, digest: str, run: str, trainers: frozenset[NodeId]
) -> CheckpointManifest | None:
    """The manifest stored with a finished checkpoint; None unless every byte of the checkpoint is still right."""
    kept = _read_manifest(directory, run=run, trainers=trainers)
    if kept is None or kept[0] != digest or not is_checkpoint_intact(directory, Layout(kept[1])):
        return None
    return kept[1]


def find_newest(into: Path, *, run: str, trainers: frozenset[NodeId]) -> tuple[str, int] | None:
    """Manifest digest and step of the newest finished checkpoint in a folder, by the
    manifests stored there. Blocking."""
    found: list[tuple[int, int, str]] = []
    for folder in into.iterdir() if into.is_dir() else ():
        kept = _read_manifest(folder, run=run, trainers=trainers)
        if kept is not None and kept[0] == folder.name:
            found.append((kept[1].term, kept[1].step, folder.name))
    return (max(found)[2], max(found)[1]) if found else None


def _read_manifest(folder: Path, *, run: str, trainers: frozenset[NodeId]) -> tuple[str, CheckpointManifest] | None:
    """The digest and manifest stored with a finished checkpoint; None unless a trainer of the run has signed it."""
    try:
        with (folder / MANIFEST_FILE).open("rb") as file:
            envelope = from_bytes(file.read(MAX_MANIFEST_BYTES + 1), limit=MAX_MANIFEST_BYTES)
        return manifest_digest(envelope), check_manifest(envelope, run=run, trainers=trainers)
    except (OSError, PeerError):
        return None


def prune_checkpoints(into: Path, *, keep: Collection[str]) -> None:
    """Delete checkpoints under `into`, finished or partial, whose manifest digest is not in `keep`, and everything
    fetched of deltas to them. Blocking.

    The caller must keep what its own readers still have open (WGT-15) and what it is fetching.
    """
    for folder in (into, into / SCRATCH):
        for path in folder.iterdir() if folder.is_dir() else ():
            name = path.name.removeprefix(".partial-")
            if len(name) == len(ZERO_DIGEST) and name not in keep and path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
