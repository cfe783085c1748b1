"""Resources held by the network's processes, from /proc: processes, open files, sockets,
memory; and owners of connections."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

PAGE = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True, slots=True)
class Holdings:
    """Totals over all processes of the network."""

    processes: int
    files: int
    sockets: int
    memory: int  # resident bytes
    disk: int  # bytes in the data folders
    stale_sockets: int  # control sockets in the temporary folder without a process

    def row(self) -> list[str]:
        """A row of a table."""
        values = (self.processes, self.files, self.sockets, round(self.memory / 2**20), round(self.disk / 2**20))
        return [str(value) for value in (*values, self.stale_sockets)]


COLUMNS = ("processes", "open files", "sockets", "memory, MiB", "disk, MiB", "stale sockets")


def sessions() -> dict[int, list[int]]:
    """Processes by session. A node shares its session with what it started (p2pd, scorers)."""
    found: dict[int, list[int]] = {}
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
            if fields[0] != "Z":
                found.setdefault(int(fields[3]), []).append(int(entry.name))
    return found


def daemon_of(leader: int) -> int | None:
    """The p2pd in the session of this process."""
    for pid in sessions().get(leader, ()):
        with contextlib.suppress(OSError):
            if Path(f"/proc/{pid}/comm").read_text().strip() == "p2pd":
                return pid
    return None


def measure(leaders: Iterable[int], folder: Path) -> Holdings:
    """What the sessions of these processes hold."""
    by_session = sessions()
    pids = [pid for leader in leaders for pid in by_session.get(leader, ())]
    files = sockets = memory = 0
    for pid in pids:
        links = _links(pid)
        files += len(links)
        sockets += sum(link.startswith("socket:") for link in links)
        with contextlib.suppress(OSError, ValueError):
            memory += int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE
    return Holdings(len(pids), files, sockets, memory, _size(folder), _stale_sockets())


class Owners:
    """Owners of loopback connections at the moment of creation, found by source and destination ports."""

    def __init__(self, leaders: Mapping[int, str]) -> None:
        ports = _connections()
        self._names: dict[tuple[int, int], str] = {}
        for leader, pids in sessions().items():
            for link in (link for pid in pids if leader in leaders for link in _links(pid)):
                if link in ports:
                    self._names[ports[link]] = leaders[leader]

    def of(self, source: int, target: int) -> str | None:
        """The name of the process whose session owns the connection."""
        return self._names.get((source, target))


def _connections() -> dict[str, tuple[int, int]]:
    """Ports of each IPv4 TCP connection, by the link target of its descriptor."""
    found: dict[str, tuple[int, int]] = {}
    with contextlib.suppress(OSError):
        for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
            fields = line.split()
            own, other = (int(fields[column].rpartition(":")[2], 16) for column in (1, 2))
            found[f"socket:[{fields[9]}]"] = own, other
    return found


def _links(pid: int) -> list[str]:
    found = []
    with contextlib.suppress(OSError):
        for link in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                found.append(os.readlink(link))
    return found


def _size(folder: Path) -> int:
    total = 0
    for root, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                total += os.lstat(Path(root) / name).st_blocks * 512
    return total


def _stale_sockets() -> int:
    count = 0
    for path in Path(tempfile.gettempdir()).glob("intellect-node-*.sock"):
        with contextlib.suppress(ValueError, IndexError):
            count += not Path(f"/proc/{int(path.name.split('-')[2])}").exists()
    return count
