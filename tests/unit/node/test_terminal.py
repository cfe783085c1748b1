"""Progress and lines: one updated line on a terminal, few in a file, and no terminal control from peers' text."""

from __future__ import annotations

import io
import os
from contextlib import suppress

import pytest
import structlog.testing

from node.phrases import phrase_of
from node.terminal import PIPED_SECONDS, Terminal, format_bytes, format_progress
from roles.shardcast.progress import Progress


class Screen(io.StringIO):
    """A terminal."""

    def isatty(self) -> bool:
        return True


def test_terminal__progress_is_written_over_and_gone_before_the_next_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    screen = Screen()
    terminal = Terminal(screen)
    terminal.progress("10%")
    terminal.progress("20%")
    terminal.line("done")
    assert screen.getvalue() == "\r\x1b[K10%\r\x1b[K20%\r\x1b[Kdone\n"


def test_terminal__a_file_gets_few_lines_and_no_colours() -> None:
    now, file = [0.0], io.StringIO()
    terminal = Terminal(file, clock=lambda: now[0])
    for now[0] in (0.0, 1.0, PIPED_SECONDS - 0.1, PIPED_SECONDS):
        terminal.progress(f"at {now[0]:g}")
    assert file.getvalue() == f"at 0\nat {PIPED_SECONDS:g}\n"


def test_terminal__a_peers_words_cannot_steer_it() -> None:
    file = io.StringIO()
    Terminal(file).line("refused: \x1b[2J\x1b]0;owned\x07 \u202etxt\r\nfake line")
    assert "\x1b" not in file.getvalue()
    assert file.getvalue().count("\n") == 1
    assert "\u202e" not in file.getvalue()


@pytest.mark.parametrize(
    ("received", "shown"),
    [
        (0, "checkpoint 7 [........................] 0% of 3.1 GB, 0 B/s"),
        (1_550_000_000, "checkpoint 7 [############............] 50% of 3.1 GB, 120 MB/s, 13 s left"),
        (4_000_000_000, "checkpoint 7 [########################] 100% of 3.1 GB, 120 MB/s, 13 s left"),
    ],
)
def test_format_progress(received: int, shown: str) -> None:
    rate = 120_000_000 if received else 0
    event = {"step": 7, "received": received, "total": 3_100_000_000, "rate": rate, "seconds_left": 13.2}
    assert format_progress(event) == shown


@pytest.mark.parametrize(("size", "shown"), [(0, "0 B"), (999, "999 B"), (1000, "1 kB"), (2_500_000, "2.5 MB")])
def test_format_bytes(size: int, shown: str) -> None:
    assert format_bytes(size) == shown


def test_progress__is_silent_for_what_is_quick_and_says_rate_and_rest__ux_05() -> None:
    now = [0.0]
    progress = Progress(7, 1000, seconds=2.0, clock=lambda: now[0])
    with structlog.testing.capture_logs() as said:
        progress.count(100)
        now[0] = 2.0
        progress.count(100)
        now[0] = 3.0
        progress.count(100)
    (event,) = said
    assert (event["received"], event["total"], event["rate"], event["seconds_left"]) == (200, 1000, 100, 8.0)


@pytest.mark.parametrize(
    ("full", "delta", "said"),
    [
        (2_970_000, 0, "checkpoint 7 is here: 2.97 MB in 1.2 s"),
        (0, 31_000, "checkpoint 7 is here: 31 kB of deltas in 1.2 s"),
        (1_000_000, 31_000, "checkpoint 7 is here: 1 MB whole and 31 kB of deltas in 1.2 s"),
    ],
)
def test_phrase__of_a_checkpoint_that_came(full: int, delta: int, said: str) -> None:
    assert phrase_of({"event": "checkpoint.fetched", "step": 7, "full": full, "delta": delta, "seconds": 1.234}) == said
    assert phrase_of({"event": "checkpoint.fetched", "step": 7}) is None


def test_line__into_a_full_disk_is_lost_and_nothing_else__ckpt_12() -> None:
    """A node whose standard error is a file on the full disk used to end with its first line after that."""
    full = os.open("/dev/full", os.O_WRONLY)
    stream = os.fdopen(full, "w", buffering=1, closefd=False)
    try:
        screen = Terminal(stream)
        screen.line("checkpoint 7 cannot be fetched yet")
        screen.progress("checkpoint 7 52%")
    finally:
        with suppress(OSError):
            stream.close()
        os.close(full)
