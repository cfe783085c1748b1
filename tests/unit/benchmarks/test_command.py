"""What the command lines of benchmarks share: refusals in a sentence, an end that leaves nothing behind, a last line of JSON."""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks import command
from benchmarks.command import (
    BenchmarkError,
    count,
    existing_file,
    finish,
    has_package,
    minutes,
    model_folder,
    python_with,
    run,
    run_to_the_end,
    share,
)

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize(
    ("kind", "good", "bad"),
    [
        (count, "3", ("0", "-1", "2.5", "many", "")),
        (share, "0.5", ("0", "1.1", "-1", "nan", "half")),
        (minutes, "0.5", ("0", "-1", "nan", "inf", "soon")),
    ],
)
def test_numbers__those_that_make_sense(kind: Callable[[str], float], good: str, bad: tuple[str, ...]) -> None:
    assert kind(good) == float(good)
    for text in bad:
        with pytest.raises(argparse.ArgumentTypeError):
            kind(text)


def test_model_folder__has_a_model(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(argparse.ArgumentTypeError, match="no model folder"):
        model_folder(str(tmp_path))
    (tmp_path / "model.safetensors").touch()
    assert model_folder(str(tmp_path)) == tmp_path
    with pytest.raises(argparse.ArgumentTypeError, match="no file"):
        existing_file(str(tmp_path / "none"))
    assert existing_file(str(tmp_path / "config.json")) == tmp_path / "config.json"


def test_python_with__an_interpreter_that_has_it() -> None:
    assert python_with("json")(sys.executable) == sys.executable
    with pytest.raises(argparse.ArgumentTypeError, match="has no no_such_package installed"):
        python_with("no_such_package")(sys.executable)
    for other in ("/nowhere/python", "/bin/true", "/bin/false", "/"):
        with pytest.raises(argparse.ArgumentTypeError, match="no Python that runs here"):
            python_with("json")(other)
        with pytest.raises(BenchmarkError):
            has_package(other, "json")


def test_finish__is_one_line_of_json_and_refuses_what_is_none(capsys: pytest.CaptureFixture[str]) -> None:
    finish("this", speed=1.5)
    assert json.loads(capsys.readouterr().out) == {"benchmark": "this", "speed": 1.5}
    with pytest.raises(ValueError, match="JSON"):
        finish("this", speed=float("nan"))


@pytest.mark.parametrize(
    ("raised", "code"), [(BenchmarkError("it broke"), "this: it broke"), (KeyboardInterrupt(), command.INTERRUPTED)]
)
def test_run__ends_in_a_sentence(raised: BaseException, code: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["/benchmarks/this/__main__.py"])

    def main() -> int:
        raise raised

    with pytest.raises(SystemExit) as ended:
        run(main)
    assert ended.value.code == code


def test_run__passes_the_exit_code_on() -> None:
    for code, expected in ((None, 0), (0, 0), (1, 1)):
        with pytest.raises(SystemExit) as ended:
            run(lambda code=code: code)  # type: ignore[misc]
        assert ended.value.code == expected


def test_run_to_the_end__says_which_command_failed(capfd: pytest.CaptureFixture[str]) -> None:
    run_to_the_end([sys.executable, "-c", "print('words')"])
    assert capfd.readouterr() == ("", "words\n")
    with pytest.raises(BenchmarkError, match="`-c raise SystemExit\\(3\\)` ended with code 3"):
        run_to_the_end([sys.executable, "-c", "raise SystemExit(3)"])


def test_run_to_the_end__interrupted__lets_the_process_end_in_order(tmp_path: Path) -> None:
    child = "\n".join(
        (
            "import pathlib, sys, time",
            "there, gone = map(pathlib.Path, sys.argv[1:])",
            "try:",
            "    there.touch()",
            "    time.sleep(60)",
            "except KeyboardInterrupt:",
            "    time.sleep(0.5)",
            "    gone.touch()",
        )
    )
    there, gone = tmp_path / "there", tmp_path / "gone"
    arguments = [sys.executable, "-c", child, str(there), str(gone)]
    program = f"from benchmarks.command import run, run_to_the_end\nrun(lambda: run_to_the_end({arguments!r}))"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen([sys.executable, "-c", program], env=environment, stderr=subprocess.PIPE, text=True) as outer:
        deadline = time.monotonic() + 60
        while not there.exists():
            assert time.monotonic() < deadline
            time.sleep(0.02)
        outer.send_signal(signal.SIGINT)
        said = outer.communicate(timeout=60)[1]
    assert outer.returncode == command.INTERRUPTED
    assert gone.exists()
    assert "Traceback" not in said
