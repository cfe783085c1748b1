"""A cache on disk of a run's events, so that a restart need not read the chain again.

It may be deleted. A file that is damaged, truncated or of another run is discarded and started anew. Each line is a
checksum and one reading: the first block it replaces, the block it extends to, and the logs in between.
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
    """Logs read up to block `head`. They replace everything that earlier readings said of blocks from `first` on."""

    first: int
    head: Block
    logs: Sequence[Mapping[str, Any]]


class EventFile:
    """Readings of one run, appended as they are made. If two processes share the file, only one of them writes it."""

    def __init__(self, folder: Path, *, domain: Domain, run: str, first_block: int) -> None:
        self._path = folder / f"events-{domain.chain_id}-{domain.contract[2:].lower()}-{run[:16]}.jsonl"
        self._header = {"version": VERSION, "run": run, "first_block": first_block, **asdict(domain)}
        self._descriptor: int | None = None

    def load(self) -> list[Reading]:
        """Every reading in order; empty when the file is missing, damaged or of another run. Blocking disk access."""
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
        """Append a reading. If the write fails, caching stops but the node continues."""
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
        """Discard the content and start over."""
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
            except OSError:  # another process in this folder owns it
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
        """Parse complete lines; a kill may have cut the last one. Raises ValueError for any other damage."""
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
