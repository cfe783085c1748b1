"""`eval` and `filter` on the built-in policy: figures, resuming, and what is refused."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path

import pytest

from node.base_model import default_model
from node.cli import dispatch, main, report
from node.errors import ConfigError
from node.evaluation.setting import add_sampling_flags, load_asked_task, plan_of
from node.parsing import Parser

QUICK = ["--problems", "6", "--samples", "2", "--max-tokens", "44", "--seed", "3"]


def run(*words: str) -> int:
    try:
        return dispatch(list(words))
    except ConfigError as error:
        return report(error)


def test_eval__says_how_often_it_passes(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("eval", str(default_model()), "--task", "arithmetic", *QUICK, "--k", "1,2", "--json") == 0
    report = json.loads(capsys.readouterr().out)
    assert report["checkpoint"]["problems"] == 6
    assert 0.0 <= report["checkpoint"]["pass@1"]["low"] <= report["checkpoint"]["pass@2"]["high"] <= 1.0


def test_eval__shows_what_the_model_says(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["eval", str(default_model()), "--task", "arithmetic", *QUICK, "--json"]
    assert run(*words, "--show", "2") == 0
    told = capsys.readouterr()
    lines = told.err.splitlines()
    assert [line for line in lines if line.startswith("-- problem")] == ["-- problem 1", "-- problem 2"]
    assert sum(line.startswith("-- score ") for line in lines) == 2 * 2
    assert run(*words) == 0
    assert capsys.readouterr().out == told.out


def test_eval__without_max_tokens_completions_fit_the_model(capsys: pytest.CaptureFixture[str]) -> None:
    """The built-in policy has 128 positions."""
    words = ["eval", str(default_model()), "--task", "arithmetic", "--problems", "1", "--samples", "1"]
    assert run(*words) == 0
    assert main([*words, "--max-tokens", "256"]) == 1
    assert "the model has 128 positions (a shorter prompt, or a smaller max_tokens)" in capsys.readouterr().err


def test_eval__two_checkpoints_each_with_its_own_weights(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One engine holds one after the other."""
    other = tmp_path / "other"
    assert run("model", "make", str(other), "--layers", "1", "--hidden", "32") == 0
    capsys.readouterr()
    both = ["eval", str(default_model()), "--against", str(other), "--task", "arithmetic", *QUICK, "--json"]
    assert run(*both) == 0
    compared = json.loads(capsys.readouterr().out)
    assert run("eval", str(other), "--task", "arithmetic", *QUICK, "--json") == 0
    alone = json.loads(capsys.readouterr().out)
    assert compared["against"] == alone["checkpoint"]
    ours, theirs = (compared[name]["pass@1"]["value"] for name in ("checkpoint", "against"))
    assert compared["difference"]["pass@1"]["value"] == pytest.approx(theirs - ours)


def test_eval__checkpoint_is_no_better_than_itself(capsys: pytest.CaptureFixture[str]) -> None:
    model = str(default_model())
    assert run("eval", model, "--against", model, "--task", "arithmetic", *QUICK) == 0
    assert "no difference that can be told" in capsys.readouterr().out


def test_eval__a_calculator_makes_its_sums_right(capsys: pytest.CaptureFixture[str]) -> None:
    """A third of the built-in policy's answers are right by itself."""
    words = ["eval", str(default_model()), "--task", "arithmetic", "--json", "--problems", "12", "--samples", "2"]
    words += ["--max-tokens", "44"]
    rates = []
    for tool in ([], ["--tool", "calculator"]):
        assert run(*words, *tool) == 0
        rates.append(json.loads(capsys.readouterr().out)["checkpoint"]["pass@1"]["value"])
    assert rates[1] > rates[0]


def test_eval__goes_on_where_it_was_killed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["eval", str(default_model()), "--task", "arithmetic", *QUICK, "--json", "--keep", str(tmp_path / "scores")]
    assert run(*words) == 0
    whole = capsys.readouterr().out
    lines = (tmp_path / "scores").read_text().splitlines(keepends=True)
    (tmp_path / "scores").write_text("".join(lines[:4]) + lines[4][:5])
    assert run(*words) == 0
    assert capsys.readouterr().out == whole
    assert len((tmp_path / "scores").read_text().splitlines()) == 7


def test_eval__other_figures_file_is_not_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kept = tmp_path / "scores"
    kept.write_text('{"plan": "another"}\n')
    assert run("eval", str(default_model()), "--task", "arithmetic", *QUICK, "--keep", str(kept)) == 1
    assert "holds another evaluation" in capsys.readouterr().err
    assert kept.read_text() == '{"plan": "another"}\n'


@pytest.mark.parametrize("other", [["--chat"], ["--dtype", "bfloat16"]])
def test_plan_of__what_changes_completions_is_another_evaluation(other: list[str]) -> None:
    def name(*words: str) -> str:
        parser = Parser("eval", "")
        parser.add_argument("checkpoint", type=Path)
        add_sampling_flags(parser, samples=2)
        options = parser.parse_args([str(default_model()), "--task", "arithmetic", "--max-tokens", "4", *words])
        return plan_of(options, options.checkpoint, load_asked_task(options), None).name

    assert name("--device", "cpu") == name() != name(*other)


@pytest.mark.parametrize(
    ("words", "code", "reason"),
    [
        (["--task", "arithmatic"], 1, "did you mean 'arithmetic'"),
        (["--task", "arithmetic", "--set", "size"], 1, "KEY=VALUE is meant"),
        pytest.param(
            ["--task", "arithmetic", "--problems", "1", "--engine", "vllm"],
            1,
            "vLLM is not installed: pip install",
            marks=pytest.mark.skipif(find_spec("vllm") is not None, reason="vLLM is installed"),
        ),
        (["--task", "arithmetic", "--tool", "calculatr"], 1, "did you mean 'calculator'"),
        (["--task", "arithmetic", "--tool", "calculator", "--max-calls", "0"], 1, "--max-calls must be at least 1"),
        (["--task", "arithmetic", "--k", "9"], 2, "from 1 to the number of samples"),
        (["--task", "arithmetic", "--samples", "0"], 2, "from 1 to the number of samples"),
        (["--task", "match", "--file", "no-such-file"], 1, "cannot read the data set"),
        (["--task", "match"], 1, "a command by --file"),
    ],
)
def test_eval__refuse(words: list[str], code: int, reason: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("eval", str(default_model()), *words) == code
    assert reason in capsys.readouterr().err


def test_eval__folder_that_is_no_checkpoint(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("eval", str(tmp_path), "--task", "arithmetic") == 1
    assert "not a checkpoint this engine can run" in capsys.readouterr().err


def test_filter__keeps_whole_rows_within_the_bounds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data, out = tmp_path / "problems.jsonl", tmp_path / "kept.jsonl"
    rows = [{"prompt": f"{n}+4+9+6>", "answer": "nothing says this", "source": n} for n in range(4)]
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    words = ["filter", str(default_model()), "--task", "match", "--file", str(data), "--out", str(out), *QUICK]
    assert run(*words, "--low", "0", "--high", "0.5") == 0
    assert [json.loads(line) for line in out.read_text().splitlines()] == rows
    assert run(*words) == 0
    assert out.read_text() == ""
    assert "0 of 4 problems kept" in capsys.readouterr().out
