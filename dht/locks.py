"""One node per data folder and per port. Locks end with the process. Ports are checked before p2pd starts, because p2pd
would silently share a port (pitfalls BOOT-12, BOOT-13)."""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TextIO

from dht.errors import Malformed, NodeError
from dht.peers import check_transport

PREFIX = "intellect-node-"
"""Prefix of our files in the temporary folder."""


class StartError(NodeError):
    """The node cannot start with this machine's set-up; the message says what to change."""


@contextlib.contextmanager
def locked(path: Path, what: str) -> Iterator[None]:
    """Hold an exclusive lock file for the duration of the block. Raises StartError when
    another node holds it (BOOT-13)."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = _lock(path)
    except OSError as error:
        raise StartError(f"cannot open {path}: {error.strerror}; check its owner and mode") from error
    if file is None:
        raise StartError(f"{what} is in use by another node (process {_written_in(path)})")
    with file:
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        try:
            yield
        finally:
            path.unlink(missing_ok=True)


def _lock(path: Path) -> TextIO | None:
    """The locked file; None when another process holds it. A file that its last holder has
    unlinked does not count as the lock."""
    while True:
        file = path.open("a+")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(file.fileno()).st_ino == path.stat().st_ino:
                return file
        except BlockingIOError:
            file.close()
            return None
        except FileNotFoundError:
            pass
        file.close()


def _written_in(path: Path) -> str:
    try:
        return path.read_text()[:16].strip() or "unknown"
    except OSError:
        return "unknown"


@contextlib.contextmanager
def reserved_ports(host_maddrs: Sequence[str]) -> Iterator[None]:
    """Lock our ports and check that they are free, because p2pd would silently share
    them. Raises StartError (BOOT-12)."""
    with contextlib.ExitStack() as stack:
        for address in host_maddrs:
            try:
                host, port = check_transport(address)
            except Malformed as error:
                raise StartError(f"cannot listen: {error}") from error
            if port:
                layer = "udp" if "/udp/" in address else "tcp"
                name = f"{PREFIX}{os.getuid()}-port-{layer}-{port}.lock"
                stack.enter_context(locked(Path(tempfile.gettempdir()) / name, f"port {port}"))
                _check_free(host, port, layer)
        yield


def _check_free(host: str, port: int, layer: str) -> None:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    kind = socket.SOCK_DGRAM if layer == "udp" else socket.SOCK_STREAM
    with socket.socket(family, kind) as probe:
        if layer == "tcp":  # so that lingering connections of our own last run do not count
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            holder = _holder_of(port) if layer == "tcp" else ""
            raise StartError(
                f"cannot listen on {host} port {port}: {error.strerror}{holder}; choose another port or stop that program"
            ) from error


def _holder_of(port: int) -> str:
    """` (held by NAME, process N)` for a listening TCP port, where Linux lets us see it; otherwise nothing."""
    if not sys.platform.startswith("linux"):
        return ""
    inodes = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with contextlib.suppress(OSError):
            fields = (line.split() for line in Path(table).read_text().splitlines()[1:])
            inodes |= {f"socket:[{f[9]}]" for f in fields if f[3] == "0A" and int(f[1].rpartition(":")[2], 16) == port}
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if any(os.readlink(link) in inodes for link in (process / "fd").iterdir()):
                return f" (held by {(process / 'comm').read_text().strip()}, process {process.name})"
    return ""
