"""Compares what a run requires of a worker's machine with what the machine has. Pure: measuring is done elsewhere.

A self-check: it spares an honest owner work that could never count. It proves nothing to others and need not, because a
machine's work is judged by its submissions.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from roles.spec import GpuSpec, RequirementsSpec

GB = 10**9
"""Bytes per GB as used in labels and data sheets, so that an "80 GB" card has 80."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """One card: its name as reported by the driver, and its memory in bytes."""

    name: str
    memory: int


@dataclass(frozen=True, slots=True)
class Hardware:
    """A machine, as far as this process may use it. Sizes in bytes; `disk` is free space plus the node's own files.
    `download_mbit` is None if it was not measured."""

    machine: str
    cores: int
    ram: int
    disk: int
    gpus: tuple[Gpu, ...] = ()
    download_mbit: float | None = None


@dataclass(frozen=True, slots=True)
class Shortfall:
    """One thing the machine lacks: what the run requires, and what is there."""

    what: str
    wanted: str
    found: str

    def __str__(self) -> str:
        return f"{self.what}: the run asks for {self.wanted}, this machine has {self.found}"


def find_shortfalls(required: RequirementsSpec, hardware: Hardware) -> tuple[Shortfall, ...]:
    """Everything that is missing, in one list. What was not measured does not count as missing."""
    numbers = (
        ("CPU cores", required.cores, float(hardware.cores), ""),
        ("memory", required.ram_gb, hardware.ram / GB, " GB"),
        ("disk", required.disk_gb, hardware.disk / GB, " GB"),
        ("download", required.download_mbit, hardware.download_mbit, " Mbit/s"),
    )
    missing = [
        Shortfall(what, f"{wanted}{unit}", f"{_rounded_down(found)}{unit}")
        for what, wanted, found, unit in numbers
        if found is not None and found < wanted
    ]
    if required.gpus and not any(is_satisfied(way, hardware.gpus) for way in required.gpus):
        missing.insert(0, Shortfall("GPU", " or ".join(map(describe_way, required.gpus)), describe_gpus(hardware.gpus)))
    return tuple(missing)


def is_satisfied(way: GpuSpec, gpus: tuple[Gpu, ...]) -> bool:
    """Whether enough of the cards are of this kind and size."""
    fit = [
        gpu
        for gpu in gpus
        if gpu.memory >= way.memory_gb * GB
        and (not way.models or any(is_model(model, gpu.name) for model in way.models))
    ]
    return len(fit) >= way.count


def is_model(model: str, name: str) -> bool:
    """Whether a card's full name contains the model's as a whole, however it is spaced: `rtx-4090` is in `NVIDIA
    GeForce RTX 4090`, `H100` in `NVIDIA H100 80GB HBM3`; `A10` is not in `NVIDIA A100`, nor `L40` in `L40S`."""
    letters = [re.escape(letter) for letter in model if letter.isalnum()]
    return bool(re.search(rf"(?<![a-z0-9]){r'[^a-z0-9]*'.join(letters)}(?![a-z0-9])", name, re.IGNORECASE))


def describe_way(way: GpuSpec) -> str:
    """`8 x H100 or H200 of 80 GB`."""
    size = f" of {way.memory_gb} GB" if way.memory_gb else ""
    return f"{way.count} x {' or '.join(way.models) or 'GPU'}{size}"


def describe_requirements(required: RequirementsSpec) -> str:
    """All requirements in one line; `none` when there are none."""
    parts = [" or ".join(map(describe_way, required.gpus))] if required.gpus else []
    parts += [
        f"{value} {unit}"
        for value, unit in (
            (required.cores, "cores"),
            (required.ram_gb, "GB memory"),
            (required.disk_gb, "GB disk"),
            (required.download_mbit, "Mbit/s download"),
        )
        if value
    ]
    return ", ".join(parts) or "none"


def describe_gpus(gpus: tuple[Gpu, ...]) -> str:
    """`2 x NVIDIA H200 of 150 GB`; cards of one kind are grouped."""
    kinds: dict[tuple[str, int], int] = {}
    for gpu in gpus:
        kind = gpu.name, int(gpu.memory / GB)
        kinds[kind] = kinds.get(kind, 0) + 1
    return ", ".join(f"{count} x {name} of {size} GB" for (name, size), count in kinds.items()) or "none"


def describe_hardware(hardware: Hardware) -> str:
    """The machine as its node record shows it, at most 256 characters."""
    line = f"{hardware.machine}, {hardware.cores} cores, {hardware.ram / GB:.0f} GB memory"
    if hardware.gpus:
        line += f", {describe_gpus(hardware.gpus)}"
    if hardware.download_mbit is not None:
        line += f", {hardware.download_mbit:.0f} Mbit/s down"
    return line[:256]


def with_upload(line: str, mbit: float | None) -> str:
    """The line with the node's upload speed added, once known. It is not measured beforehand, because relays accept
    uploads from members only."""
    return line if mbit is None or not line else f"{line}, {mbit:.0f} Mbit/s up"[:256]


def _rounded_down(value: float) -> str:
    """Round down for display, so that a shortfall is never shown as large as what is required."""
    return f"{int(value * 10) / 10:g}"
