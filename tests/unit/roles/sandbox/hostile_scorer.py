"""A scorer as bad as can be: what it does is what it is asked to do."""

from __future__ import annotations

import os
import time


def act(what: str) -> object:
    """Misbehave as told."""
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
    return what
