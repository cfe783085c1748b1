"""`calibrate` on the built-in policy: thresholds in a draft, resuming, and what is refused."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest

from node.base_model import default_model
from node.calibration.drafts import write_checks
from node.cli import dispatch, report
from node.errors import ConfigError, UsageError
from roles.spec import CheckSpec

DRAFT = """\
# Hand-written
name = "small"

[[tasks]]
name = "arithmetic"

[sampling]
max_tokens = 12
group_size = 2
groups_per_submission = 1

[checks]
chunk = 8

[checks.honest] # guessed
exponent_mismatches = 3
mantissa_mean = 60
mantissa_median = 500
margin_mean = 2

[epoch]
checkpoints = 5
"""


@pytest.fixture
def draft(tmp_path: Path) -> Path:
    path = tmp_path / "run.toml"
    path.write_text(DRAFT)
    return path


def run(*words: str) -> int:
    try:
        return dispatch(["calibrate", str(default_model()), *words])
    except (ConfigError, UsageError) as error:
        return report(error)


def test_calibrate__thresholds_are_put_into_the_draft__top_16(draft: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--spec", str(draft), "--submissions", "3", "--environments", "pinned,eager,bfloat16", "--one-in", "500"]
    assert run(*words) == 0
    assert "shown only" in capsys.readouterr().out
    text = draft.read_text()
    written = tomllib.loads(text)
    checks = CheckSpec.model_validate_json(json.dumps(written["checks"]))
    assert checks.joined is not None
    assert (checks.joined.refuse_one_in, checks.chunk) == (1000, 8)
    assert checks.fraud.exponent_mismatches >= 20
    assert "# Hand-written" in text
    assert "guessed" not in text
    assert written["epoch"] == {"checkpoints": 5}


def test_calibrate__goes_on_where_it_was_killed(draft: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--spec", str(draft), "--submissions", "2", "--environments", "pinned,alone", "--json"]
    assert run(*words) == 0
    whole, first = capsys.readouterr().out, draft.read_text()
    kept = draft.with_name("run.toml.observations")
    lines = kept.read_text().splitlines(keepends=True)
    kept.write_text("".join(lines[:3]) + lines[3][:9])
    assert run(*words) == 0
    assert json.loads(capsys.readouterr().out) == json.loads(whole)
    assert draft.read_text() == first
    assert len(kept.read_text().splitlines()) == 5


def test_calibrate__other_machines_files_are_fitted_too(draft: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--spec", str(draft), "--submissions", "2", "--environments", "pinned", "--json"]
    other = draft.with_name("other.observations")
    assert run(*words, "--keep", str(other)) == 0
    capsys.readouterr()
    other.write_text(other.read_text().replace('"device": "cpu"', '"device": "cuda"'))
    assert run(*words, "--also", str(other)) == 0
    report = json.loads(capsys.readouterr().out)
    assert list(report["environments"]) == ["pinned", "pinned of other.observations"]
    assert report["fit"]["submissions"] == 4
    assert run(*words, "--keep", str(other)) == 1
    assert "holds another calibration" in capsys.readouterr().err
    assert run(*words, "--also", str(draft.with_name("missing"))) == 1
    assert "there is no file" in capsys.readouterr().err


def test_calibrate__another_runs_observations_are_not_mixed_in(draft: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kept = draft.with_name("kept")
    kept.write_text('{"calibration": "another"}\n')
    assert run("--spec", str(draft), "--keep", str(kept), "--quick") == 1
    assert "holds another calibration" in capsys.readouterr().err
    assert draft.read_text() == DRAFT


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--environments", "cuda-graphs"], "there is no 'cuda-graphs'; there are pinned"),
        (["--submissions", "1"], "at least 2"),
        (["--one-in", "1"], "from 5"),
    ],
)
def test_calibrate__refuses(words: list[str], reason: str, draft: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--spec", str(draft), *words) != 0
    assert reason in capsys.readouterr().err


def test_write_checks__a_draft_in_another_form_is_left_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text("checks = { chunk = 8, honest = { exponent_mismatches = 3 } }\n")
    with pytest.raises(ConfigError, match="write its checks as tables"):
        write_checks(path, path, {"honest": {"exponent_mismatches": 5}}, note="")
    assert path.read_text().startswith("checks = { chunk")
