"""What a machine has: container limits, hidden GPUs, and tools that return nonsense."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from node.hardware import count_cores, folder_size, free_disk, measure_hardware, measure_ram, read_amd, read_nvidia
from roles.requirements import Gpu

TWO_CARDS = "0, GPU-aa11, NVIDIA H100 80GB HBM3, 81559\n1, GPU-bb22, NVIDIA GeForce RTX 4090, 24564\n"
H100, RTX_4090 = Gpu("NVIDIA H100 80GB HBM3", 81_559 * 2**20), Gpu("NVIDIA GeForce RTX 4090", 24_564 * 2**20)


@pytest.mark.parametrize(
    ("visible", "seen"),
    [
        (None, (H100, RTX_4090)),
        ("1", (RTX_4090,)),
        ("GPU-aa", (H100,)),
        ("0, 1", (H100, RTX_4090)),
        ("", ()),
        ("-1", ()),
    ],
)
def test_read_nvidia__only_cards_the_process_may_use(visible: str | None, seen: tuple[Gpu, ...]) -> None:
    assert read_nvidia(TWO_CARDS, visible=visible) == seen


@pytest.mark.parametrize("text", ["", "No devices were found\n", "0, x, name, [N/A]\n", "0, x, name\n", "\x00,,,\n"])
def test_read_nvidia__nonsense_is_no_card(text: str) -> None:
    assert read_nvidia(text) == ()


def test_read_amd__by_the_titles_of_its_columns() -> None:
    text = "device,Card Series,VRAM Total Memory (B),VRAM Total Used Memory (B)\ncard0,Instinct MI300X,206141652992,1\n"
    assert read_amd(text) == (Gpu("AMD Instinct MI300X", 206_141_652_992),)
    assert read_amd("WARNING: no device\n") == ()


def test_container__its_limits_count(tmp_path: Path) -> None:
    (tmp_path / "cpu.max").write_text("100000 100000\n")
    (tmp_path / "memory.max").write_text(f"{2**30}\n")
    assert count_cores(tmp_path) == 1
    assert measure_ram(tmp_path) == 2**30


@pytest.mark.parametrize("text", ["max 100000\n", "max\n", "", "rubbish rubbish\n"])
def test_container__without_limits(text: str, tmp_path: Path) -> None:
    (tmp_path / "cpu.max").write_text(text)
    (tmp_path / "memory.max").write_text(text)
    assert count_cores(tmp_path) == len(os.sched_getaffinity(0))
    assert measure_ram(tmp_path) > 2**30


def test_measure_hardware__what_the_node_holds_counts_as_its_disk(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "blob").write_bytes(b"x" * 1000)
    (tmp_path / "link").symlink_to(tmp_path / "deep" / "blob")
    assert 1000 <= folder_size(tmp_path) < 2000
    assert measure_hardware(tmp_path).disk > 1000


def test_free_disk__of_a_folder_still_to_be_made(tmp_path: Path) -> None:
    assert free_disk(tmp_path / "not" / "yet") > 0
