"""What a run requires of a machine: each threshold from both sides, and the various names of GPUs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from pydantic import ValidationError

from roles.requirements import (
    GB,
    Gpu,
    Hardware,
    describe_hardware,
    describe_requirements,
    find_shortfalls,
    is_model,
    is_satisfied,
    with_upload,
)
from roles.spec import GpuSpec, RequirementsSpec

H100 = Gpu("NVIDIA H100 80GB HBM3", 81_559 * 2**20)
A100 = Gpu("NVIDIA A100-SXM4-40GB", 40_960 * 2**20)
RTX_4090 = Gpu("NVIDIA GeForce RTX 4090", 24_564 * 2**20)
MACHINE = Hardware("x86_64", cores=8, ram=32 * GB, disk=100 * GB, gpus=(H100, H100, RTX_4090), download_mbit=100.0)


def requirements(**changes: Any) -> RequirementsSpec:
    """Requirements that MACHINE meets exactly, with nothing to spare."""
    fields: dict[str, Any] = {"cores": 8, "ram_gb": 32, "disk_gb": 100, "download_mbit": 100}
    return RequirementsSpec(**{**fields, "gpus": (GpuSpec(count=2, models=("H100",), memory_gb=80),), **changes})


def test_find_shortfalls__exactly_enough_is_enough() -> None:
    assert find_shortfalls(requirements(), MACHINE) == ()


def test_find_shortfalls__nothing_asked_nothing_missing() -> None:
    assert find_shortfalls(RequirementsSpec(), Hardware("", cores=0, ram=0, disk=0)) == ()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"cores": 7}, "CPU cores: the run asks for 8, this machine has 7"),
        ({"ram": 32 * GB - 1}, "memory: the run asks for 32 GB, this machine has 31.9 GB"),
        ({"disk": 100 * GB - 1}, "disk: the run asks for 100 GB, this machine has 99.9 GB"),
        ({"download_mbit": 99.99}, "download: the run asks for 100 Mbit/s, this machine has 99.9 Mbit/s"),
        ({"gpus": (H100, RTX_4090)}, "GPU: the run asks for 2 x H100 of 80 GB, this machine has 1 x NVIDIA H100 80GB"),
        ({"gpus": ()}, "this machine has none"),
    ],
)
def test_find_shortfalls__one_less_is_too_little__trn_14(change: dict[str, Any], said: str) -> None:
    (missing,) = find_shortfalls(requirements(), replace(MACHINE, **change))
    assert said in str(missing)


def test_find_shortfalls__all_at_once() -> None:
    assert len(find_shortfalls(requirements(), Hardware("", cores=1, ram=1, disk=1, download_mbit=1.0))) == 5


def test_find_shortfalls__what_was_not_measured_is_not_missing() -> None:
    assert find_shortfalls(requirements(), replace(MACHINE, download_mbit=None)) == ()


@pytest.mark.parametrize(
    ("ways", "is_enough"),
    [
        ((GpuSpec(count=8, models=("H100",)), GpuSpec(count=1, models=("4090",))), True),  # one way is enough
        ((GpuSpec(count=8, models=("H100",)), GpuSpec(count=2, models=("4090",))), False),
        ((GpuSpec(count=2, models=("H200", "H100")),), True),  # one model is enough
        ((GpuSpec(count=2, models=("H200", "B200")),), False),
        ((GpuSpec(count=3),), True),  # any card
        ((GpuSpec(count=3, memory_gb=24),), True),
        ((GpuSpec(count=3, memory_gb=26),), False),
        ((GpuSpec(count=3, models=("H100", "4090")),), True),  # cards of both kinds count together
    ],
)
def test_find_shortfalls__lists_are_alternatives(ways: tuple[GpuSpec, ...], is_enough: bool) -> None:
    assert (find_shortfalls(requirements(gpus=ways), MACHINE) == ()) is is_enough


@pytest.mark.parametrize(("memory", "is_enough"), [(80 * GB, True), (80 * GB - 1, False)])
def test_is_satisfied__memory_of_each_card(memory: int, is_enough: bool) -> None:
    assert is_satisfied(GpuSpec(memory_gb=80), (Gpu("any", memory),)) is is_enough


@pytest.mark.parametrize(("gpu", "size"), [(H100, 80), (A100, 40), (RTX_4090, 24)])
def test_is_satisfied__a_card_has_what_its_label_says(gpu: Gpu, size: int) -> None:
    assert is_satisfied(GpuSpec(memory_gb=size), (gpu,))


@pytest.mark.parametrize(
    ("model", "name", "is_one"),
    [
        ("H100", H100.name, True),
        ("a100", A100.name, True),
        ("RTX-4090", RTX_4090.name, True),
        ("rtx4090", RTX_4090.name, True),
        ("A10", A100.name, False),
        ("L40", "NVIDIA L40S", False),
        ("4090", "NVIDIA GeForce RTX 4090D", False),
        ("H20", "NVIDIA H200", False),
    ],
)
def test_is_model__names_as_people_write_them(model: str, name: str, is_one: bool) -> None:
    assert is_model(model, name) is is_one


@pytest.mark.parametrize("models", [("",), ("--",), ("x" * 65,)])
def test_gpu_spec__a_name_that_names_nothing_is_refused(models: tuple[str, ...]) -> None:
    with pytest.raises(ValidationError):
        GpuSpec(models=models)


def test_with_upload__once_there_was_one() -> None:
    assert with_upload("x86_64", 12.6) == "x86_64, 13 Mbit/s up"
    assert with_upload("x86_64", None) == "x86_64"
    assert len(with_upload("x" * 256, 1.0)) == 256


def test_describe__in_one_line() -> None:
    asked = requirements(gpus=(GpuSpec(count=8, models=("H100", "H200"), memory_gb=80), GpuSpec(models=("4090",))))
    assert describe_requirements(asked) == (
        "8 x H100 or H200 of 80 GB or 1 x 4090, 8 cores, 32 GB memory, 100 GB disk, 100 Mbit/s download"
    )
    assert describe_requirements(RequirementsSpec()) == "none"
    assert describe_hardware(MACHINE).startswith(
        "x86_64, 8 cores, 32 GB memory, 2 x NVIDIA H100 80GB HBM3 of 85 GB, 1 x"
    )
    assert len(describe_hardware(replace(MACHINE, gpus=(Gpu("x" * 400, 1),)))) == 256
