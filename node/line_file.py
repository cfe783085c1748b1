"""A file of JSON lines for long measurements. Each line is on disk before the next is begun."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from dht.disk import write_durably


class LineFile:
    """Lines of at most `longest` characters. The first is a header that says what the lines belong to."""

    def __init__(self, path: Path, *, longest: int) -> None:
        self._path, self._longest = path, longest

    def read(self) -> list[Any]:
        """Every complete line, without one that a kill cut short; empty when there is no
        file. Raises OSError, ValueError."""
        return [json.loads(line) for line in self._lines() if self._is_whole(line)]

    def repair(self) -> None:
        """Remove an incomplete last line, if there is one. Raises OSError."""
        lines = self._lines()
        whole = [line for line in lines if self._is_whole(line)]
        if len(whole) < len(lines):
            write_durably(self._path, "".join(whole).encode())

    def begin(self, header: Any) -> None:
        """Start the file over with this header. Raises OSError."""
        write_durably(self._path, f"{json.dumps(header)}\n".encode())

    def append(self, value: Any) -> None:
        """Append a line; it is on disk when this returns. Raises OSError."""
        with self._path.open("a") as file:
            file.write(json.dumps(value, separators=(",", ":")) + "\n")
            file.flush()
            os.fsync(file.fileno())

    def _lines(self) -> list[str]:
        return self._path.read_text().splitlines(keepends=True) if self._path.exists() else []

    def _is_whole(self, line: str) -> bool:
        return line.endswith("\n") and len(line) < self._longest
