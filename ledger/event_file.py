"""What was read of a run's events, on disk, so that a restart does not read the chain again.

A cache: it may be deleted, and whatever is damaged, cut or of another run is thrown away and begun anew. Each line is
a checksum and one reading: the blocks it replaces, the block it goes up to, and the logs in between.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import structlog

from ledger.records import Block
from ledger.wallet import Domain

log = structlog.get_logger(__name__)

VERSION = 1
MAX_BYTES = 512 * 2**20
LOG_FIELDS = ("address", "topics", "data", "blockNumber", "blockHash", "transactionHash", "logIndex")


@dataclass(frozen=True, slots=True)
class Reading:
    """Logs read up to block `head`; what earlier readings said of blocks from `first` on no longer holds."""

    first: int
    head: Block
    logs: Sequence[Mapping[str, Any]]


class EventFile:
    """Readings of one run, appended as they are made. Of two processes that share a file one keeps it up to date."""

    def __init__(self, folder: Path, *, domain: Domain, run: str, first_block: int) -> None:
        self._path = folder / f"events-{domain.chain_id}-{domain.contract[2:].lower()}-{run[:16]}.jsonl"
        self._header = {"version": VERSION, "run": run, "first_block": first_block, **asdict(domain)}
        self._descriptor: int | None = None

    def load(self) -> list[Reading]:
        """Every reading in order; none when the file is missing, damaged or not this run's. Blocks on the disk."""
        if not self._open():
            return []
        try:
            size = os.fstat(self._must_open()).st_size
            if size:
                return self._parse(self._path.read_bytes() if size <= MAX_BYTES else b"")
        except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            log.info("events.discarded", file=str(self._path), cause=str(error)[:200])
        self.discard()
        return []

    def append(self, reading: Reading) -> None:
        """Add a reading. A disk that refuses ends the keeping, not the node."""
        if self._descriptor is None:
            return
        logs = [{name: each.get(name) for name in LOG_FIELDS} for each in reading.logs]
        line = _line({"first": reading.first, "head": asdict(reading.head), "logs": logs})
        try:
            os.write(self._descriptor, line)
        except OSError as error:
            log.info("events.discarded", file=str(self._path), cause=error.strerror)
            self.close()

    def discard(self) -> None:
        """Delete what was kept and start over."""
        if self._descriptor is None:
            return
        try:
            os.ftruncate(self._descriptor, 0)
            os.write(self._descriptor, _line(self._header))
        except OSError:
            self.close()

    def close(self) -> None:
        """Close the file."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _open(self) -> bool:
        with contextlib.suppress(OSError):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:  # another process of this folder keeps it
                os.close(descriptor)
                return False
            self._descriptor = descriptor
            return True
        return False

    def _must_open(self) -> int:
        if self._descriptor is None:
            raise ValueError("the file is not open")
        return self._descriptor

    def _parse(self, raw: bytes) -> list[Reading]:
        """Whole lines only: the last may have been cut by a kill. Raises ValueError for anything else that is wrong."""
        kept = raw.rfind(b"\n") + 1
        lines = [_unline(line) for line in raw[:kept].splitlines()]
        if not lines or lines[0] != self._header:
            raise ValueError("of another run or version, or empty")
        os.ftruncate(self._must_open(), kept)
        readings = [Reading(each["first"], Block(**each["head"]), each["logs"]) for each in lines[1:]]
        head = int(self._header["first_block"]) - 1
        for reading in readings:
            if not isinstance(reading.first, int) or not 0 <= reading.first <= head + 1:
                raise ValueError("a reading is missing")
            head = reading.head.number
        return readings


def _line(value: object) -> bytes:
    text = json.dumps(value, separators=(",", ":")).encode()
    return b"%08x %s\n" % (zlib.crc32(text), text)


def _unline(line: bytes) -> Any:
    if int(line[:8], 16) != zlib.crc32(line[9:]):
        raise ValueError("a line is damaged")
    return json.loads(line[9:])
