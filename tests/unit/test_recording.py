"""The recording of a testnet: every complete picture is included, and the last is
shown by viewers without animation."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
SVG = "{http://www.w3.org/2000/svg}"


def frame(number: int) -> str:
    """A picture as rich draws it."""
    return f'<svg viewBox="0 0 {100 + number} 50" xmlns="http://www.w3.org/2000/svg"><text>step {number}</text></svg>'


@pytest.fixture(scope="module")
def script() -> ModuleType:
    """scripts/make_recording.py."""
    spec = importlib.util.spec_from_file_location("make_recording", ROOT / "scripts" / "make_recording.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("count", [1, 2, 5])
def test_combine__each_frame_once_and_the_last_stays(script: ModuleType, count: int) -> None:
    root = ET.fromstring(script.combine([frame(number) for number in range(count)]))  # noqa: S314 - our own
    groups = root.findall(f"{SVG}g")
    assert [group.find(f"{SVG}text").text for group in groups] == [f"step {number}" for number in range(count)]  # type: ignore[union-attr]
    assert [group.get("visibility") for group in groups] == ["hidden"] * (count - 1) + ["visible"]
    assert root.get("viewBox") == f"0 0 {99 + count} 50"
    for group in groups:
        times = [float(each) for each in group.find(f"{SVG}animate").get("keyTimes").split(";")]  # type: ignore[union-attr]
        assert times == sorted(times)
        assert 0 <= times[0] <= times[-1] <= 1


def test_record__whole_pictures_only(script: ModuleType, tmp_path: Path) -> None:
    picture = tmp_path / "frame.svg"
    write = f"import sys, pathlib; p = pathlib.Path(sys.argv[2]); p.write_text('<svg half'); p.write_text({frame(1)!r})"
    assert list(script.record([sys.executable, "-c", write], picture)) == [frame(1)]


def test_record__a_run_that_fails_is_no_recording(script: ModuleType, tmp_path: Path) -> None:
    with pytest.raises(subprocess.CalledProcessError):
        list(script.record([sys.executable, "-c", "raise SystemExit(3)"], tmp_path / "frame.svg"))
