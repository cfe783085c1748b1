"""Deltas from each checkpoint's parent, made concurrently with training and written to disk before they are sent."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

import structlog

from dht.disk import make_folder, sync, write_durably
from dht.envelope import Envelope, from_bytes, to_bytes
from dht.errors import PeerError
from dht.identity import NodeKey
from roles.ports import Clock
from roles.shardcast.delta import encode_worthwhile
from roles.shardcast.manifest import (
    MAX_MANIFEST_BYTES,
    build_delta,
    check_delta,
    choose_shard_size,
    manifest_digest,
    seal_manifest,
)
from roles.spec import RunSpec
from roles.trainer.journal import KEPT_CHECKPOINTS, Journal

log = structlog.get_logger()

SMALLEST_PART = 2**20
"""Minimum size of a delta's shard in bytes: a delta is small, and each shard costs a request."""
ROW, FILE = "row", "delta"


class Deltas:
    """The deltas of one term, in a folder of their own: `{step}/delta` and `{step}/row`. Blocking calls."""

    def __init__(self, spec: RunSpec, *, term: int, key: NodeKey, journal: Journal, folder: Path, clock: Clock) -> None:
        self._spec, self._term, self._key, self._journal, self._clock = spec, term, key, journal, clock
        self._folder = folder
        make_folder(folder)

    def is_anchor(self, step: int) -> bool:
        """Whether a checkpoint is sent whole even to relays that could rebuild it from a delta."""
        return not self._spec.broadcast.delta or step % self._spec.broadcast.anchor_every == 0

    def make(self, step: int) -> tuple[Envelope, Path] | None:
        """The signed row and the folder of the delta to a checkpoint, reusing one made before a restart.

        None when the checkpoint itself is the shorter way, its parent is not here, or the delta
        cannot be written to disk.
        """
        if not self._spec.broadcast.delta or step == 0:
            return None
        target, base = self._journal.manifest(step), self._journal.manifest(step - 1)
        if target is None or base is None or not self._journal.checkpoint(step - 1).is_dir():
            return None
        ends = manifest_digest(base), manifest_digest(target)
        kept = self._kept(step, ends)
        try:
            return (kept, self._folder / str(step)) if kept is not None else self._make(step, ends)
        except OSError as error:
            log.warning("delta.failed", step=step, why=str(error))
            return None

    def prune(self) -> None:
        """Delete the deltas of checkpoints that are no longer kept."""
        steps = sorted(int(path.name) for path in self._folder.iterdir() if path.name.isdigit())
        for step in steps[:-KEPT_CHECKPOINTS]:
            shutil.rmtree(self._folder / str(step), ignore_errors=True)

    def _make(self, step: int, ends: tuple[str, str]) -> tuple[Envelope, Path] | None:
        began, folder = time.monotonic(), self._folder / str(step)
        temporary = self._folder / f".{step}.tmp"
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir()
        report = encode_worthwhile(self._journal.checkpoint(step - 1), self._journal.checkpoint(step), temporary / FILE)
        if report is None:
            shutil.rmtree(temporary)
            log.info("delta.skipped", step=step, seconds=round(time.monotonic() - began, 3))
            return None
        row = self._seal(step, ends, temporary / FILE, size=report.delta_bytes)
        write_durably(temporary / ROW, to_bytes(row))
        shutil.rmtree(folder, ignore_errors=True)
        temporary.rename(folder)
        sync(self._folder)
        log.info(
            "delta.made",
            step=step,
            full=report.full_bytes,
            delta=report.delta_bytes,
            changed=report.changed,
            elements=report.elements,
            seconds=round(time.monotonic() - began, 3),
        )
        return row, folder

    def _seal(self, step: int, ends: tuple[str, str], file: Path, *, size: int) -> Envelope:
        delta = build_delta(
            file,
            run=self._spec.run_id,
            term=self._term,
            step=step,
            base=ends[0],
            target=ends[1],
            shard_size=max(SMALLEST_PART, choose_shard_size(size)),
        )
        return seal_manifest(self._key, delta, now_ms=self._clock())

    def _kept(self, step: int, ends: tuple[str, str]) -> Envelope | None:
        """The row on disk, if we signed it and it is of these two checkpoints."""
        try:
            row = from_bytes((self._folder / str(step) / ROW).read_bytes(), limit=MAX_MANIFEST_BYTES)
            delta = check_delta(row, run=self._spec.run_id, trainers={self._key.node})
        except (OSError, PeerError):  # missing or unusable: it is made anew
            return None
        return row if (delta.base, delta.target) == ends else None
