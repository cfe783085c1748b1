"""A clock that another process can set. With this folder on PYTHONPATH, Python's `time.time` is ahead by the number of
seconds in the file named by CHAOS_CLOCK (a double). The monotonic clock is unaffected, as when a real clock is set."""

from __future__ import annotations

import mmap
import os
import struct
import time

_real_time, _real_time_ns = time.time, time.time_ns


def _install(path: str) -> None:
    with open(path, "rb") as file:
        offset = mmap.mmap(file.fileno(), 8, prot=mmap.PROT_READ)

    def now() -> float:
        return _real_time() + float(struct.unpack_from("d", offset)[0])

    def now_ns() -> int:
        return _real_time_ns() + int(struct.unpack_from("d", offset)[0] * 1e9)

    time.time, time.time_ns = now, now_ns


if "CHAOS_CLOCK" in os.environ:
    _install(os.environ["CHAOS_CLOCK"])
