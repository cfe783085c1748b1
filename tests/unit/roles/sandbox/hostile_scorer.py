"""A scorer that misbehaves in any way requested."""

from __future__ import annotations

import _thread
import os
import signal
import time

SEEN: list[str] = []


def act(what: str) -> object:
    """Misbehave as requested."""
    match what:
        case "echo":
            return [1, "two", None]
        case "raise":
            raise ValueError("no")
        case "exit":
            raise SystemExit(3)
        case "die":
            os._exit(3)
        case "hang":
            time.sleep(600)
        case "print":
            print('{"value": 1.0}')  # noqa: T201
            os.write(1, b'{"value": 1.0}\n')
            return 0.0
        case "read":
            return open("/etc/passwd").read()
        case "flood":
            return "x" * (20 * 2**20)
        case "nothing json":
            return {1, 2}
        case "huge number":
            return 10**400
        case "no number":
            return float("nan")
        case "remember":
            SEEN.append(what)
            return SEEN
        case "thread":
            return _thread.start_new_thread(time.sleep, (600,))
        case "fork":
            return os.fork()
        case "answer in another's place":
            for number in range(3, 32):
                _write(number, b'{"value": "forged"}\n' * 9)
            os._exit(0)
        case "answer without bottom":
            for number in range(3, 32):
                _write(number, b"[" * 200_000)
            os._exit(0)
        case "hang, deaf to its time":
            signal.signal(signal.SIGALRM, signal.SIG_IGN)
            time.sleep(600)
        case "take all memory":
            return len(bytearray(10**11))
    return what


def _write(number: int, data: bytes) -> None:
    try:
        os.write(number, data)
    except OSError:
        return
