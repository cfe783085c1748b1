"""Follows the event files of the nodes."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

MAX_READ = 4 * 2**20
"""Bytes read at one look; the rest comes with the next."""

Event = Mapping[str, Any]


class EventTail:
    """New events of one file since the last look. A file that was started over is read from its beginning."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._position = 0
        self._rest = b""

    def read(self) -> Iterator[Event]:
        """Complete new lines; damaged ones are skipped."""
        for line in self._lines():
            try:
                event = json.loads(line)
            except ValueError:
                continue
            if isinstance(event, dict) and "event" in event:
                yield event

    def _lines(self) -> list[bytes]:
        try:
            size = self.path.stat().st_size
            if size < self._position:
                self._position, self._rest = 0, b""
            with self.path.open("rb") as file:
                file.seek(self._position)
                data = file.read(MAX_READ)
        except OSError:
            return []
        self._position += len(data)
        *lines, self._rest = (self._rest + data).split(b"\n")
        return lines
