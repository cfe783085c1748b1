"""The file of long measurements: a kill or a full disk costs only the line being written."""

from __future__ import annotations

from pathlib import Path

import pytest

from node.line_file import LineFile
from tests.full_disk import no_file_larger


@pytest.fixture
def lines(tmp_path: Path) -> LineFile:
    made = LineFile(tmp_path / "kept.jsonl", longest=1000)
    made.begin({"plan": 1})
    made.append({"number": 0})
    return made


def test_repair__removes_a_line_that_a_kill_cut_short(lines: LineFile, tmp_path: Path) -> None:
    with (tmp_path / "kept.jsonl").open("a") as file:
        file.write('{"numb')
    lines.repair()
    lines.append({"number": 1})
    assert lines.read() == [{"plan": 1}, {"number": 0}, {"number": 1}]


def test_repair__where_the_disk_takes_nothing_all_lines_stay(lines: LineFile, tmp_path: Path) -> None:
    with (tmp_path / "kept.jsonl").open("a") as file:
        file.write('{"numb')
    with no_file_larger(10), pytest.raises(OSError, match="too large"):
        lines.repair()
    assert lines.read() == [{"plan": 1}, {"number": 0}]


def test_begin__whole_or_not_at_all(tmp_path: Path) -> None:
    with no_file_larger(5), pytest.raises(OSError, match="too large"):
        LineFile(tmp_path / "kept.jsonl", longest=1000).begin({"plan": 1})
    assert not (tmp_path / "kept.jsonl").exists()
