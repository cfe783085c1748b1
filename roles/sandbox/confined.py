"""What runs inside: take the program, give up every right, run it. Started by `roles.sandbox.program`; stdlib only."""

from __future__ import annotations

import os
import resource
import sys
from collections.abc import Sequence

from roles.sandbox.landlock import NEWEST, restrict_to_reading
from roles.sandbox.seccomp import Starts, forbid_new_privileges, restrict_calls
from roles.sandbox.threads import hand_over

NOT_CONFINED = 125
"""Exit status when the kernel would not confine us: the program was not run."""
OPEN_FILES = 32


def main() -> None:
    """Arguments: the descriptors of the program and of the socket over which its threads are counted, its limits, and the
    process that started us."""
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
    """Give up, for good, all but computing, and reading the standard library and what is `readable` besides, and end with
    the process `parent`. What may be started is what `starts` says, or threads that are counted over a socket. Raises
    OSError where the kernel does not take part, or the parent has ended already."""
    for limit, value in (
        (resource.RLIMIT_AS, memory),
        (resource.RLIMIT_CPU, cpu_seconds),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_NOFILE, OPEN_FILES),
    ):
        resource.setrlimit(limit, (value, value))
    forbid_new_privileges()
    if os.getppid() != parent:  # its death came before we asked to share it
        raise ProcessLookupError("the process that started this one has ended")
    restrict_to_reading((*readable_paths(), *readable), newest=newest_landlock)
    restrict_calls(starts if counted_over is None else hand_over(counted_over))


def readable_paths() -> tuple[str, ...]:
    """The standard library, the libraries it loads, and sources of zeros and randomness."""
    library = (os.path.dirname(os.__file__),)  # sysconfig knows it too, but takes longer to import than all the rest
    shared = "/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/local/lib", "/etc/ld.so.cache"
    return (*library, *shared, "/dev/null", "/dev/zero", "/dev/urandom")


if __name__ == "__main__":
    main()
