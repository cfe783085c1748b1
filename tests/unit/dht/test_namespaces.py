"""Nodes on separate machines, as far as the kernel can emulate them: namespaces, IPv6, a
partition, new seeds, a new address."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

UNSHARE = ("unshare", "--user", "--map-root-user", "--net")


def has_namespaces() -> bool:
    """Whether we may make network namespaces here, with bridges in them."""
    if shutil.which("unshare") is None or shutil.which("ip") is None or shutil.which("nsenter") is None:
        return False
    command = [*UNSHARE, "ip", "link", "add", "probe", "type", "bridge"]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


pytestmark = [
    pytest.mark.testnet,
    pytest.mark.slow,
    pytest.mark.timeout(400),
    pytest.mark.skipif(not has_namespaces(), reason="no network namespaces here"),
]


def test_partition_heals_seeds_and_an_address_change__boot_07_boot_09_nat_01_nat_10(tmp_path: Path) -> None:
    command = [*UNSHARE, sys.executable, "-m", "tests.unit.dht.namespaces", str(tmp_path)]
    played = subprocess.run(command, capture_output=True, text=True, check=False, timeout=360)
    assert played.returncode == 0, played.stdout + played.stderr[-4000:]
    assert "all seeds were replaced" in played.stdout
    assert "found at the new one" in played.stdout
