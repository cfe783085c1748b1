"""The development chain's blocks on disk: what they are made of, so that a restart makes the same ones again."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ledger.errors import LedgerError


@dataclass(frozen=True, slots=True)
class Genesis:
    """What block 0 is made of: its time and the addresses that hold coins."""

    timestamp: int
    funded: tuple[str, ...]


class Journal:
    """Append-only file of one JSON line a block; the first line is the genesis. A torn last line is dropped."""

    def __init__(self, path: Path, genesis: Genesis) -> None:
        lines, kept = _read_lines(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        os.ftruncate(self._descriptor, kept)
        self._before = os.lseek(self._descriptor, 0, os.SEEK_END)
        if not lines:
            self._write({"timestamp": genesis.timestamp, "funded": genesis.funded}, sync=True)
            lines = [{"timestamp": genesis.timestamp, "funded": genesis.funded}]
        self.genesis = Genesis(lines[0]["timestamp"], tuple(lines[0]["funded"]))
        self.blocks: Sequence[tuple[int, str | None]] = tuple((line[0], line[1]) for line in lines[1:])

    def append(self, timestamp: int, raw: bytes | None) -> None:
        """Record a block before it is made; with a transaction, also flush it to the disk."""
        self._write([timestamp, raw.hex() if raw else None], sync=raw is not None)

    def take_back(self) -> None:
        """Forget the last block recorded: it could not be made."""
        os.ftruncate(self._descriptor, self._before)
        os.lseek(self._descriptor, self._before, os.SEEK_SET)

    def close(self) -> None:
        """Close the file."""
        os.close(self._descriptor)

    def _write(self, line: object, *, sync: bool) -> None:
        self._before = os.lseek(self._descriptor, 0, os.SEEK_CUR)
        os.write(self._descriptor, json.dumps(line).encode() + b"\n")
        if sync:
            os.fsync(self._descriptor)


def _read_lines(path: Path) -> tuple[list[Any], int]:
    """Whole lines of a journal and how many bytes they fill. Raises LedgerError when it is no journal."""
    if not path.exists():
        return [], 0
    raw = path.read_bytes()
    kept = raw.rfind(b"\n") + 1
    try:
        return [json.loads(line) for line in raw[:kept].splitlines()], kept
    except ValueError as error:
        raise LedgerError(f"{path} is not a devnet journal: remove it to start a new chain") from error
