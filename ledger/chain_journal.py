"""The development chain's blocks on disk: the inputs from which a restart rebuilds identical blocks."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ledger.disk import make_folder, sync
from ledger.errors import LedgerError


@dataclass(frozen=True, slots=True)
class Genesis:
    """The inputs of block 0: its time, and the addresses that hold coins."""

    timestamp: int
    funded: tuple[str, ...]


class Journal:
    """Append-only file with one JSON line per block; the first line is the genesis. An
    incomplete last line is dropped."""

    def __init__(self, path: Path, genesis: Genesis) -> None:
        held, blocks, self._end = _read(path)
        make_folder(path.parent)
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        self._before = self._end
        if held is None:
            self._write(asdict(genesis), sync=True)
            sync(path.parent)
        self.genesis, self.blocks = held or genesis, blocks

    def append(self, timestamp: int, raw: bytes | None) -> None:
        """Record a block before it is made. A block with a transaction is also flushed to disk."""
        self._write([timestamp, raw.hex() if raw else None], sync=raw is not None)

    def take_back(self) -> None:
        """Remove the last block recorded, because it could not be made."""
        self._end = self._before
        os.ftruncate(self._descriptor, self._end)

    def close(self) -> None:
        """Close the file."""
        os.close(self._descriptor)

    def _write(self, line: object, *, sync: bool) -> None:
        """Append a line. If a full disk took only part of it, that part is cut off before the next write."""
        data = json.dumps(line).encode() + b"\n"
        os.ftruncate(self._descriptor, self._end)
        written = 0
        while written < len(data):
            written += os.pwrite(self._descriptor, data[written:], self._end + written)
        if sync:
            os.fsync(self._descriptor)
        self._before, self._end = self._end, self._end + len(data)


def _read(path: Path) -> tuple[Genesis | None, Sequence[tuple[int, str | None]], int]:
    """Genesis, blocks, and the length in bytes of their complete lines. Raises LedgerError
    when the file is not a journal."""
    if not path.exists():
        return None, (), 0
    raw = path.read_bytes()
    kept = raw.rfind(b"\n") + 1
    try:
        lines = [json.loads(line) for line in raw[:kept].splitlines()]
        genesis = Genesis(int(lines[0]["timestamp"]), tuple(lines[0]["funded"])) if lines else None
        return genesis, tuple(_block(line) for line in lines[1:]), kept
    except (ValueError, TypeError, KeyError) as error:
        raise LedgerError(f"{path} is not a devnet journal: remove it to start a new chain") from error


def _block(line: Any) -> tuple[int, str | None]:
    timestamp, raw = line
    if raw is not None:
        bytes.fromhex(raw)
    return int(timestamp), raw
