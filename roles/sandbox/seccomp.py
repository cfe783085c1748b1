"""Seccomp: which system calls a process may still make. Runs in the process to be confined; stdlib only.

An allow-list of what an interpreter needs to compute and to use its open files; everything else fails with
EPERM, including calls that later kernels add. No sockets, no second process, no program, no signal to others
(nor a file that sends one), no file opened for writing, no raised limits. What may be started depends on the
caller: threads, processes, nothing.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
from enum import Enum, auto

SET_NO_NEW_PRIVS, SET_SECCOMP, SET_DEATH_SIGNAL = 38, 22, 1
FILTER_MODE = 2
SET_MODE_FILTER, NEW_LISTENER = 1, 1 << 3
LOAD, JUMP_EQUAL, JUMP_SET, RETURN = 0x20, 0x15, 0x45, 0x06
ALLOW, KILL, ERROR, ASK = 0x7FFF0000, 0x80000000, 0x00050000, 0x7FC00000
NUMBER_AT, ARCHITECTURE_AT, ARGUMENTS_AT = 0, 4, 16
CLONE_THREAD = 0x00010000
CLONE_NAMESPACES = 0x7E020000
DUPLICATE, GET_FLAGS, SET_FLAGS, DUPLICATE_CLOSED = 0, (1, 2, 3), 4, 1030
"""Allowed `fcntl` commands. Others lock files, grow pipes, or set whom a file signals when it is
ready and how, even SIGKILL."""
OPENS_FOR_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
X32_BIT = 0x40000000

ARCHITECTURES = {"x86_64": (0xC000003E, 0), "aarch64": (0xC00000B7, 1)}
"""Audit number, and column in `CALLS`, by machine."""

CALLS: dict[str, tuple[int | None, int | None]] = {
    # name: number on x86_64, on aarch64
    "read": (0, 63),
    "write": (1, 64),
    "close": (3, 57),
    "stat": (4, None),
    "fstat": (5, 80),
    "lstat": (6, None),
    "poll": (7, None),
    "lseek": (8, 62),
    "mmap": (9, 222),
    "mprotect": (10, 226),
    "munmap": (11, 215),
    "brk": (12, 214),
    "rt_sigaction": (13, 134),
    "rt_sigprocmask": (14, 135),
    "rt_sigreturn": (15, 139),
    "pread64": (17, 67),
    "readv": (19, 65),
    "writev": (20, 66),
    "access": (21, None),
    "select": (23, None),
    "sched_yield": (24, 124),
    "mremap": (25, 216),
    "madvise": (28, 233),
    "dup": (32, 23),
    "nanosleep": (35, 101),
    "getpid": (39, 172),
    "exit": (60, 93),
    "uname": (63, 160),
    "getcwd": (79, 17),
    "readlink": (89, None),
    "gettimeofday": (96, 169),
    "getrusage": (98, 165),
    "sysinfo": (99, 179),
    "times": (100, 153),
    "getuid": (102, 174),
    "getgid": (104, 176),
    "geteuid": (107, 175),
    "getegid": (108, 177),
    "getppid": (110, 173),
    "sigaltstack": (131, 132),
    "gettid": (186, 178),
    "time": (201, None),
    "futex": (202, 98),
    "sched_getaffinity": (204, 123),
    "getdents64": (217, 61),
    "restart_syscall": (219, 128),
    "fadvise64": (221, 223),
    "clock_gettime": (228, 113),
    "clock_getres": (229, 114),
    "clock_nanosleep": (230, 115),
    "exit_group": (231, 94),
    "newfstatat": (262, 79),
    "readlinkat": (267, 78),
    "faccessat": (269, 48),
    "pselect6": (270, 72),
    "ppoll": (271, 73),
    "set_robust_list": (273, 99),
    "pipe2": (293, 59),
    "getrandom": (318, 278),
    "membarrier": (324, 283),
    "statx": (332, 291),
    "rseq": (334, 293),
    "faccessat2": (439, 439),
}
CLONE, CLONE3, OPENAT, PRLIMIT, TGKILL, IOCTL = (56, 220), (435, 435), (257, 56), (302, 261), (234, 131), (16, 29)
FCNTL = (72, 25)
"""Calls that are allowed depending on their arguments, or that fail with a specific errno."""
KEEPER_CALLS: dict[str, tuple[int | None, int | None]] = {
    "setitimer": (38, 103),
    "fork": (57, None),
    "wait4": (61, 260),
    "prctl": (157, 167),
}
"""Additional calls for a process that starts others, one for each call, and confines them further."""
SECCOMP = (317, 277)


class Starts(Enum):
    """What a confined process may start."""

    NOTHING = auto()
    THREADS = auto()
    PROCESSES = auto()


def forbid_new_privileges() -> None:
    """Programs started from here gain no rights, and this process dies with its parent."""
    _prctl(SET_NO_NEW_PRIVS, 1)
    _prctl(SET_DEATH_SIGNAL, 9)


def restrict_calls(starts: Starts = Starts.NOTHING) -> None:
    """Install the filter on this process and its threads. It cannot be undone. Raises OSError when that fails."""
    _, header = _packed(build_filter(platform.machine(), os.getpid(), starts))
    _prctl(SET_SECCOMP, FILTER_MODE, header)


def listen_to_clones() -> int:
    """From here on, each start of a thread or process waits until the holder of the returned descriptor has answered.
    Raises OSError, also when a listener from outside exists already, since the kernel allows only one."""
    audit, column = _architecture(platform.machine())
    lines = [(LOAD, 0, 0, ARCHITECTURE_AT), (JUMP_EQUAL, 1, 0, audit), _return(KILL), (LOAD, 0, 0, NUMBER_AT)]
    _, header = _packed([*lines, *_when(CLONE[column], [_return(ASK)]), _return(ALLOW)])
    libc = ctypes.CDLL(None, use_errno=True)
    listener = libc.syscall(SECCOMP[column], SET_MODE_FILTER, ctypes.c_ulong(NEW_LISTENER), header)
    if listener < 0:
        raise OSError(ctypes.get_errno(), "seccomp gave no listener")
    return int(listener)


def build_filter(machine: str, pid: int, starts: Starts = Starts.NOTHING) -> list[tuple[int, int, int, int]]:
    """The filter as BPF instructions (code, jump if true, jump if false, constant). Raises
    OSError for an unknown machine."""
    audit, column = _architecture(machine)
    lines = [(LOAD, 0, 0, ARCHITECTURE_AT), (JUMP_EQUAL, 1, 0, audit), _return(KILL), (LOAD, 0, 0, NUMBER_AT)]
    if machine == "x86_64":
        lines += [(JUMP_SET, 0, 1, X32_BIT), _return(KILL)]
    allowed = CALLS | KEEPER_CALLS if starts is Starts.PROCESSES else CALLS
    for numbers in allowed.values():
        number = numbers[column]
        if number is not None:
            lines += _when(number, [_return(ALLOW)])
    if starts is Starts.THREADS:
        lines += _only_if_set(CLONE[column], argument=0, bits=CLONE_THREAD)
    if starts is Starts.PROCESSES:
        lines += _unless_set(CLONE[column], argument=0, bits=CLONE_NAMESPACES, refusal=errno.EPERM)
    lines += _unless_set(OPENAT[column], argument=2, bits=OPENS_FOR_WRITING, refusal=errno.EACCES)
    lines += _when(FCNTL[column], _harmless_file_control())
    lines += _only_if_zero(PRLIMIT[column], argument=2)
    lines += _only_if_equal(TGKILL[column], argument=0, value=pid)
    lines += _when(IOCTL[column], [_return(ERROR | errno.ENOTTY)])  # pretend that nothing is a terminal
    lines += _when(CLONE3[column], [_return(ERROR | errno.ENOSYS)])  # the C library then tries clone
    return [*lines, _return(ERROR | errno.EPERM)]


def _architecture(machine: str) -> tuple[int, int]:
    if machine not in ARCHITECTURES:
        raise OSError(f"no list of system calls for {machine}")
    return ARCHITECTURES[machine]


def _packed(lines: list[tuple[int, int, int, int]]) -> tuple[ctypes.Array[ctypes.c_char], ctypes.c_char_p]:
    """The instructions, which must be kept alive, and the header that points to them."""
    buffer = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *line) for line in lines))
    return buffer, ctypes.c_char_p(struct.pack("@HP", len(lines), ctypes.addressof(buffer)))


def _when(number: int, then: list[tuple[int, int, int, int]]) -> list[tuple[int, int, int, int]]:
    """Apply `then`, which returns on every path, to the call with this number."""
    return [(JUMP_EQUAL, 0, len(then), number), *then]


def _harmless_file_control() -> list[tuple[int, int, int, int]]:
    """Allow duplicating a descriptor and its flags, but never making a file signal a process."""
    lines = [_low(1)]
    for command in (DUPLICATE, *GET_FLAGS, DUPLICATE_CLOSED):
        lines += _when(command, [_return(ALLOW)])
    refused = _return(ERROR | errno.EPERM)
    lines += _when(SET_FLAGS, [_low(2), (JUMP_SET, 0, 1, os.O_ASYNC), refused, _return(ALLOW)])
    return [*lines, refused]


def _only_if_set(number: int, *, argument: int, bits: int) -> list[tuple[int, int, int, int]]:
    test = (JUMP_SET, 0, 1, bits)
    return _when(number, [_low(argument), test, _return(ALLOW), _return(ERROR | errno.EPERM)])


def _unless_set(number: int, *, argument: int, bits: int, refusal: int) -> list[tuple[int, int, int, int]]:
    test = (JUMP_SET, 0, 1, bits)
    return _when(number, [_low(argument), test, _return(ERROR | refusal), _return(ALLOW)])


def _only_if_equal(number: int, *, argument: int, value: int) -> list[tuple[int, int, int, int]]:
    test = (JUMP_EQUAL, 0, 1, value)
    return _when(number, [_low(argument), test, _return(ALLOW), _return(ERROR | errno.EPERM)])


def _only_if_zero(number: int, *, argument: int) -> list[tuple[int, int, int, int]]:
    """Allow the call only if both halves of a pointer argument are zero."""
    low, high = _low(argument), (LOAD, 0, 0, ARGUMENTS_AT + 8 * argument + 4)
    tests = [low, (JUMP_EQUAL, 0, 3, 0), high, (JUMP_EQUAL, 0, 1, 0)]
    return _when(number, [*tests, _return(ALLOW), _return(ERROR | errno.EPERM)])


def _low(argument: int) -> tuple[int, int, int, int]:
    return (LOAD, 0, 0, ARGUMENTS_AT + 8 * argument)


def _return(action: int) -> tuple[int, int, int, int]:
    return (RETURN, 0, 0, action)


def _prctl(option: int, value: int, pointer: ctypes.c_char_p | None = None) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(option, ctypes.c_ulong(value), pointer, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl {option} was refused")
