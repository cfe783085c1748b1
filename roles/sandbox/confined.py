"""Runs inside the sandbox: takes the program, gives up every right, runs it. Started by
`roles.sandbox.program`; stdlib only."""

from __future__ import annotations

import os
import resource
import sys
from collections.abc import Sequence

from roles.sandbox.landlock import NEWEST, restrict_to_reading
from roles.sandbox.seccomp import Starts, forbid_new_privileges, restrict_calls
from roles.sandbox.threads import hand_over

NOT_CONFINED = 125
"""Exit status when the kernel would not confine the process; the program was then not run."""
OPEN_FILES = 32


def main() -> None:
    """Arguments: the descriptors of the program and of the socket over which its threads are counted, its limits, and
    the id of the process that started this one."""
    descriptor, channel, memory, cpu_seconds, parent = map(int, sys.argv[1:6])
    with os.fdopen(descriptor, "rb") as source:
        program = source.read()
    try:
        confine(parent=parent, memory=memory, cpu_seconds=cpu_seconds, counted_over=channel)
    except OSError as error:
        os.write(2, f"cannot be confined: {error}".encode())
        os._exit(NOT_CONFINED)
    sys.argv = ["program"]
    exec(compile(program, "program", "exec"), {"__name__": "__main__", "__builtins__": __builtins__})  # noqa: S102


def confine(
    *,
    parent: int,
    memory: int,
    cpu_seconds: int = resource.RLIM_INFINITY,
    readable: Sequence[str] = (),
    starts: Starts = Starts.NOTHING,
    counted_over: int | None = None,
    newest_landlock: int = NEWEST,
) -> None:
    """Permanently give up everything except computing and reading the standard library and the `readable` paths, and
    end with the process `parent`. `starts` says what may be started; with `counted_over`, threads that are counted over
    that socket. Raises OSError when the kernel does not support this, or the parent has already ended."""
    for limit, value in (
        (resource.RLIMIT_AS, memory),
        (resource.RLIMIT_CPU, cpu_seconds),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_NOFILE, OPEN_FILES),
    ):
        resource.setrlimit(limit, (value, value))
    forbid_new_privileges()
    if os.getppid() != parent:  # it ended before we asked to die with it
        raise ProcessLookupError("the process that started this one has ended")
    restrict_to_reading((*readable_paths(), *readable), newest=newest_landlock)
    restrict_calls(starts if counted_over is None else hand_over(counted_over))


def readable_paths() -> tuple[str, ...]:
    """The standard library, the libraries it loads, and sources of zeros and randomness."""
    library = (os.path.dirname(os.__file__),)  # sysconfig has it too, but takes longer to import than everything else
    shared = "/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/local/lib", "/etc/ld.so.cache"
    return (*library, *shared, "/dev/null", "/dev/zero", "/dev/urandom")


if __name__ == "__main__":
    main()
