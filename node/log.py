"""Where events go: JSON lines to `<data>/events.jsonl`, short lines to the terminal, libraries' messages to `node.log`.

Every event is also counted by name; `/metrics` shows the counts. Fields that could hold a secret are dropped.
"""

from __future__ import annotations

import contextlib
import json
import logging
import logging.handlers
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, MutableMapping
from pathlib import Path
from typing import Any, TextIO

import structlog

from node.defaults import EVENT_FILE_BYTES, LOG_FILE_BYTES
from node.phrases import phrase_of
from node.terminal import Terminal, format_progress

SECRET_WORDS = ("secret", "password", "private", "mnemonic", "keystore")
LEVELS = {"debug": 10, "info": 20, "warning": 30, "error": 40, "critical": 50}
PROGRESS = "checkpoint.arriving"
"""The event shown as a line that is updated in place."""
FIELDS_SHOWN = 8
RECENT = 40

Event = MutableMapping[str, Any]


class EventStream:
    """The node's event file, bounded: past its limit it is renamed to `events.1.jsonl` and started over."""

    def __init__(self, path: Path, *, limit: int = EVENT_FILE_BYTES) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path
        self.counts: Counter[str] = Counter()
        self.recent: deque[dict[str, Any]] = deque(maxlen=RECENT)
        self.listeners: list[Callable[[Event], None]] = []  # called with each event, in the thread where it occurred
        self._limit = limit
        self._lock = threading.Lock()
        self._file = self._open()

    def _open(self) -> TextIO:
        return self.path.open("a", buffering=1, encoding="utf-8")

    def write(self, event: Event) -> None:
        """Append one event as a line of JSON, from any thread. On a full disk the line is lost;
        whoever needs the disk reports it."""
        self.counts[str(event.get("event"))] += 1
        self.recent.append(dict(event))
        for listener in self.listeners:
            with contextlib.suppress(Exception):  # a failing listener must not stop the node
                listener(event)
        with self._lock, contextlib.suppress(OSError):
            if self._file.closed:
                self._file = self._open()
            self._file.write(json.dumps(event, default=str, separators=(",", ":")) + "\n")
            if self._file.tell() > self._limit:
                self._file.close()
                self.path.replace(self.path.with_suffix(".1.jsonl"))
                self._file = self._open()

    def close(self) -> None:
        """Flush and close."""
        with self._lock, contextlib.suppress(OSError):
            self._file.close()


def configure_logging(
    *, events: EventStream, terminal: TextIO, level: str, library_log: Path, bound: dict[str, str]
) -> None:
    """Send structlog's events to file and terminal, and the libraries' warnings to `library_log`."""
    library = logging.handlers.RotatingFileHandler(library_log, maxBytes=LOG_FILE_BYTES, backupCount=1)
    library.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s %(message)s"))
    logging.basicConfig(handlers=[library], level=logging.WARNING, force=True)
    logging.captureWarnings(True)
    logging.raiseExceptions = False  # otherwise a full disk prints tracebacks of lost messages
    threshold, screen = LEVELS[level], Terminal(terminal)

    def show(_: Any, method: str, event: Event) -> Event:
        plain = {"ts": round(time.time(), 3), "level": method, **bound, **_without_secrets(event)}
        events.write(plain)
        if plain["event"] == PROGRESS and threshold <= LEVELS["info"]:
            screen.progress(f"{_head(plain)} {format_progress(plain)}")
        elif LEVELS.get(method, 20) >= threshold:
            screen.line(format_line(plain))
        raise structlog.DropEvent

    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.format_exc_info,
            show,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.DEBUG if level == "debug" else logging.INFO),
        cache_logger_on_first_use=False,
    )


def quiet_libraries() -> None:
    """Remove the log handlers that libraries installed on import; their messages go to the file only."""
    for name in ("hivemind", "transformers", "uvicorn", "httpx", "httpcore"):
        logger = logging.getLogger(name)
        logger.handlers.clear()
        logger.propagate = True


def _without_secrets(event: Event) -> dict[str, Any]:
    return {name: value for name, value in event.items() if not any(word in name.lower() for word in SECRET_WORDS)}


def format_line(event: Event) -> str:
    """One event for people: time, role, and its sentence, or its name and first fields when it has none."""
    is_quiet = event["level"] in ("info", "debug")
    mark = "" if is_quiet else f"{str(event['level']).upper()} "
    said = phrase_of(event)
    if said is None:
        said = f"{event['event']} {_fields(event)}"
    elif not is_quiet:
        said = f"{said} [{event['event']}]"
    return f"{_head(event)} {mark}{said}".rstrip()


def _head(event: Event) -> str:
    return f"{time.strftime('%H:%M:%S', time.localtime(event['ts']))} {event.get('role', '-'):9}"


def _fields(event: Event) -> str:
    shown = [(name, value) for name, value in event.items() if name not in ("ts", "level", "node", "role", "event")]
    return " ".join(f"{name}={_short(value)}" for name, value in shown[:FIELDS_SHOWN] if name != "exception")


def _short(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    text = str(value)
    if len(text) >= 40 and " " not in text:
        return f"{text[:6]}..{text[-4:]}"
    return text if len(text) <= 160 else text[:157] + "..."
