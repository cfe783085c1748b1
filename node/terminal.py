"""Terminal output of a running node: lines, and one progress line that is overwritten where the stream is a terminal.

Text from peers passes through here, so terminal control characters are removed.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import time
from collections.abc import Callable, Mapping
from typing import Any, TextIO

BAR = 24
PIPED_SECONDS = 30.0
"""Interval between progress lines where they cannot be overwritten."""
_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
"""Control characters except the tab, and those that change the writing direction."""
_UNITS = (("GB", 10**9), ("MB", 10**6), ("kB", 10**3))


class Terminal:
    """Lines and progress on one stream."""

    def __init__(self, stream: TextIO, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream, self._clock = stream, clock
        self._is_live = stream.isatty() and os.environ.get("TERM") != "dumb"
        self._is_dirty = False
        self._said: float | None = None

    def line(self, text: str) -> None:
        """Print a line, after clearing an unfinished progress line."""
        self._clear()
        self._write(plain(text) + "\n")

    def progress(self, text: str) -> None:
        """Overwrite the last progress; in a file or pipe, print a line now and then."""
        if self._is_live:
            width = shutil.get_terminal_size().columns - 1
            self._write(f"\r\x1b[K{plain(text)[:width]}")
            with contextlib.suppress(OSError):
                self._stream.flush()
            self._is_dirty = True
        elif self._said is None or self._clock() - self._said >= PIPED_SECONDS:
            self._said = self._clock()
            self._write(plain(text) + "\n")

    def _write(self, text: str) -> None:
        """Write to the stream. If it leads to a full disk or a closed pipe, the line
        is lost, but the node continues."""
        with contextlib.suppress(OSError):
            self._stream.write(text)

    def _clear(self) -> None:
        if self._is_dirty:
            self._write("\r\x1b[K")
            self._is_dirty = False


def plain(text: str) -> str:
    """The text without terminal control characters."""
    return _CONTROL.sub("?", text)


def count(number: int, noun: str) -> str:
    """`1 trainer`, `2 trainers`."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def format_progress(event: Mapping[str, Any]) -> str:
    """`checkpoint 7 [######......] 52% of 3.1 GB, 120 MB/s, 13 s left`."""
    received, total = int(event["received"]), max(1, int(event["total"]))
    share = min(1.0, received / total)
    bar = "#" * round(BAR * share) + "." * (BAR - round(BAR * share))
    left = f", {float(event['seconds_left']):.0f} s left" if event.get("rate") else ""
    return (
        f"checkpoint {event['step']} [{bar}] {100 * share:.0f}% of {format_bytes(total)}, "
        f"{format_bytes(int(event['rate']))}/s{left}"
    )


def progress_bar(screen: Terminal) -> Callable[[int, int], None]:
    """A function that updates the terminal's last line, given the bytes present and the total."""
    began, first = time.monotonic(), -1

    def show(here: int, total: int) -> None:
        nonlocal first, began
        if first < 0 or here < first:
            began, first = time.monotonic(), here
        rate = (here - first) / max(time.monotonic() - began, 1e-3)
        filled = round(BAR * here / total)
        screen.progress(
            f"[{'#' * filled}{'.' * (BAR - filled)}] {100 * here // total}% of {format_bytes(total)}, "
            f"{format_bytes(int(rate))}/s"
        )

    return show


def format_bytes(size: int) -> str:
    """`3.1 GB`."""
    for unit, bytes_ in _UNITS:
        if size >= bytes_:
            return f"{size / bytes_:.3g} {unit}"
    return f"{size} B"
