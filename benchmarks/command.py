"""What the command lines of benchmarks share: bad usage is one sentence, Ctrl-C ends what was started, the last line is JSON."""

from __future__ import annotations

import argparse
import json
import math
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn

from dht.errors import NodeError
from ledger.errors import LedgerError

STOP_SECONDS = 30.0
"""An ordered end of a testnet: its nodes', then its chain's."""
INTERRUPTED = 130
_PROBE = "import importlib.util, sys; print('has', importlib.util.find_spec(sys.argv[1]) is not None)"


class BenchmarkError(NodeError):
    """Why nothing could be measured, as a sentence."""


def count(text: str) -> int:
    """An argument: a number of things, one or more."""
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of at least 1")
    return int(text)


def share(text: str) -> float:
    """An argument: more than 0, at most 1."""
    value = _number(text)
    if not 0 < value <= 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not above 0 and at most 1")
    return value


def minutes(text: str) -> float:
    """An argument: a time above 0."""
    value = _number(text)
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of minutes above 0")
    return value


def _number(text: str) -> float:
    """0, which no argument may be, for what is no number."""
    try:
        return float(text)
    except ValueError:
        return 0.0


def model_folder(text: str) -> Path:
    """An argument: a folder with a model in it."""
    folder = Path(text).expanduser()
    if not (folder / "config.json").is_file() or not any(folder.glob("*.safetensors")):
        raise argparse.ArgumentTypeError(f"{text!r} is no model folder: config.json and *.safetensors are not in it")
    return folder


def existing_file(text: str) -> Path:
    """An argument: a file that is there."""
    if not Path(text).is_file():
        raise argparse.ArgumentTypeError(f"there is no file {text!r}")
    return Path(text)


def has_package(python: str | Path, package: str) -> bool:
    """Whether an interpreter finds a package. Raises BenchmarkError when it is none."""
    try:
        done = subprocess.run(
            [str(python), "-c", _PROBE, package], capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BenchmarkError(f"'{python}' is no Python that runs here") from error
    if done.returncode or not done.stdout.startswith("has "):
        raise BenchmarkError(f"'{python}' is no Python that runs here")
    return done.stdout.split()[1] == "True"


def python_with(package: str) -> Callable[[str], str]:
    """The type of an argument: an interpreter that has a package."""

    def check(text: str) -> str:
        try:
            if has_package(text, package):
                return text
        except BenchmarkError as error:
            raise argparse.ArgumentTypeError(str(error)) from error
        raise argparse.ArgumentTypeError(f"the Python {text!r} has no {package} installed")

    return check


def run_to_the_end(command: Sequence[str]) -> None:
    """A process whose output goes to stderr. Interrupted, it is asked to end and waited for. Raises BenchmarkError."""
    process = subprocess.Popen(command, stdout=sys.stderr, stdin=subprocess.DEVNULL, process_group=0)
    try:
        code = process.wait()
    except BaseException:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        raise
    if code:
        raise BenchmarkError(f"`{' '.join(command[1:4])}` ended with code {code}; what it said is above")


def finish(benchmark: str, **figures: object) -> None:
    """The last line: everything measured, as JSON that any reader takes. Raises ValueError for what is no number."""
    print(json.dumps({"benchmark": benchmark, **figures}, allow_nan=False), flush=True)


def run(main: Callable[[], int | None]) -> NoReturn:
    """Run a benchmark as a program: its exit code, or one sentence and 1, or 130 at Ctrl-C."""
    name = Path(sys.argv[0]).stem
    name = Path(sys.argv[0]).parent.name if name == "__main__" else name
    try:
        sys.exit(main() or 0)
    except KeyboardInterrupt:
        sys.stderr.write(f"{name}: stopped\n")
        sys.stderr.flush()
        sys.exit(INTERRUPTED)
    except BrokenPipeError:  # as `| head` leaves it
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except (NodeError, LedgerError) as error:
        sys.exit(f"{name}: {error}")
