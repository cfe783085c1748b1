"""What this machine offers to this process: container limits apply, and hidden GPUs do not count.

Does not load torch; it uses the drivers' own tools. What cannot be determined is left out, never guessed.
"""

from __future__ import annotations

import contextlib
import csv
import os
import platform
import shutil
import subprocess
from pathlib import Path

from roles.requirements import Gpu, Hardware

MIB = 2**20
TOOL_SECONDS = 10.0
"""Timeout for a driver's tool; the first call after boot initialises the GPUs."""
VISIBLE = "CUDA_VISIBLE_DEVICES"
NVIDIA_QUERY = ("nvidia-smi", "--query-gpu=index,uuid,name,memory.total", "--format=csv,noheader,nounits")
AMD_QUERY = ("rocm-smi", "--showproductname", "--showmeminfo", "vram", "--csv")
CGROUP = Path("/sys/fs/cgroup")


def measure_hardware(folder: Path, *, download_mbit: float | None = None) -> Hardware:
    """Measure the machine. `folder` is the node's own, whose content counts as free space. Takes up to ten seconds."""
    return Hardware(
        machine=platform.machine(),
        cores=count_cores(),
        ram=measure_ram(),
        disk=free_disk(folder) + folder_size(folder),
        gpus=list_gpus(),
        download_mbit=download_mbit,
    )


def count_cores(cgroup: Path = CGROUP) -> int:
    """Cores that this process may use, given its affinity and a container's quota."""
    affinity = getattr(os, "sched_getaffinity", None)
    cores = len(affinity(0)) if affinity else os.cpu_count() or 1
    quota, _, period = _read(cgroup / "cpu.max").partition(" ")
    if quota.isdigit() and period.strip().isdigit():
        cores = min(cores, max(1, int(quota) // int(period)))
    return cores


def measure_ram(cgroup: Path = CGROUP) -> int:
    """Bytes of memory this process may use."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit = _read(cgroup / "memory.max").strip()
    return min(total, int(limit)) if limit.isdigit() else total


def free_disk(folder: Path) -> int:
    """Bytes free where the folder is, or will be; 0 when that cannot be determined."""
    for place in (folder, *folder.parents):
        with contextlib.suppress(OSError):
            return shutil.disk_usage(place).free
    return 0


def folder_size(folder: Path) -> int:
    """Bytes in a folder's files; links are not followed."""
    total = 0
    for place, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                total += os.lstat(os.path.join(place, name)).st_size
    return total


def list_gpus() -> tuple[Gpu, ...]:
    """GPUs that this process may use, from NVIDIA's tool or AMD's; empty where neither answers."""
    return read_nvidia(_ask(NVIDIA_QUERY), visible=os.environ.get(VISIBLE)) or read_amd(_ask(AMD_QUERY))


def read_nvidia(text: str, *, visible: str | None = None) -> tuple[Gpu, ...]:
    """Parse lines of `index, uuid, name, MiB`. `visible` is the process's own selection, by index or id prefix."""
    found = []
    for row in csv.reader(text.splitlines(), skipinitialspace=True):
        if len(row) == 4 and row[3].strip().isdigit() and _is_visible(row[0].strip(), row[1].strip(), visible):
            found.append(Gpu(row[2].strip()[:64], int(row[3]) * MIB))
    return tuple(found)


def _is_visible(index: str, uuid: str, visible: str | None) -> bool:
    if visible is None:
        return True
    words = [word.strip() for word in visible.split(",")]
    return any(word == index or (word and uuid.startswith(word)) for word in words)


def read_amd(text: str) -> tuple[Gpu, ...]:
    """Parse a table with a header. The columns for the GPU's name and its memory in bytes are found by their titles."""
    rows = list(csv.DictReader(text.splitlines()))
    found = []
    for row in rows:
        name = next((value for title, value in row.items() if title and "series" in title.lower()), None)
        memory = next((value for title, value in row.items() if title and "total memory" in title.lower()), None)
        if name and memory and memory.strip().isdigit():
            found.append(Gpu(f"AMD {name.strip()}"[:64], int(memory)))
    return tuple(found)


def _ask(command: tuple[str, ...]) -> str:
    path = shutil.which(command[0])
    if path is None:
        return ""
    try:
        done = subprocess.run(  # noqa: S603 - the driver's own tool, by its whole path
            [path, *command[1:]], capture_output=True, text=True, timeout=TOOL_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired, UnicodeDecodeError):
        return ""
    return done.stdout if done.returncode == 0 else ""


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError):
        return ""
