"""Landlock: limits what a process can access in the file system. Runs in the process to be confined; stdlib only.

After `restrict_to_reading` the kernel lets nothing be written, made, renamed, executed or truncated, and nothing be
read outside the given paths (what `stat` tells of a path stays visible). Constants from `linux/landlock.h`.
"""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Sequence

CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446  # the same on every architecture
VERSION_FLAG = 1
PATH_BENEATH = 1
READ_FILE, READ_DIR = 1 << 2, 1 << 3
FILE_RIGHTS = {1: 0x1FFF, 2: 0x3FFF, 3: 0x7FFF, 4: 0x7FFF, 5: 0xFFFF}
"""All file rights that an ABI knows, by the first ABI that knows them."""
NEWEST = max(*FILE_RIGHTS, 6)
BIND_AND_CONNECT = 0b11  # TCP, from ABI 4
ABSTRACT_SOCKETS_AND_SIGNALS = 0b11  # from ABI 6


def landlock_abi() -> int:
    """The kernel's Landlock ABI; 0 when it is absent or disabled."""
    return max(0, int(_libc().syscall(CREATE_RULESET, None, ctypes.c_size_t(0), VERSION_FLAG)))


def restrict_to_reading(paths: Sequence[str], *, newest: int = NEWEST) -> None:
    """Leave this process only the right to read under `paths`; paths that do not exist are
    skipped. This cannot be undone.

    Needs `no_new_privs`. Uses no more than what the ABI `newest` has. Raises OSError when the kernel refuses.
    """
    abi = min(landlock_abi(), newest)
    if not abi:
        raise OSError("this kernel has no Landlock")
    ruleset = _check(_libc().syscall(CREATE_RULESET, *_ruleset(abi), 0))
    try:
        for path in paths:
            _allow(ruleset, path)
        _check(_libc().syscall(RESTRICT_SELF, ruleset, 0))
    finally:
        os.close(ruleset)


def _ruleset(abi: int) -> tuple[bytes, ctypes.c_size_t]:
    rights = FILE_RIGHTS[min(abi, max(FILE_RIGHTS))]
    fields = [rights, *([BIND_AND_CONNECT] if abi >= 4 else []), *([ABSTRACT_SOCKETS_AND_SIGNALS] if abi >= 6 else [])]
    return struct.pack(f"={len(fields)}Q", *fields), ctypes.c_size_t(8 * len(fields))


def _allow(ruleset: int, path: str) -> None:
    try:
        place = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        rights = READ_FILE | (READ_DIR if os.path.isdir(path) else 0)
        _check(_libc().syscall(ADD_RULE, ruleset, PATH_BENEATH, struct.pack("=Qi", rights, place), 0))
    finally:
        os.close(place)


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _check(result: int) -> int:
    if result < 0:
        raise OSError(ctypes.get_errno(), "Landlock refused a rule")
    return result
