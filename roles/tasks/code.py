"""Programming: runs the program in a completion against tests, in the sandbox (INTELLECT-2, section 3.1).

The right output never enters the sandbox: a program gets a test's input, and its output is compared outside, so the
only way to pass is to compute it. Tests are `{"inputs": [..], "outputs": [..]}` as text for standard input and output,
or with `"function": "name"`: lists of arguments, and results, as JSON values.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from roles.sandbox.program import MAX_PROGRAM, Ending, Limits, Outcome, run_program, why_threadless
from roles.tasks.answers import answer_part
from roles.tasks.problems import ProblemList, digest_of, load_problems, texts_of
from roles.tasks.task import TaskError, Undecided

NAME = "code"
SCORER_VERSION = "code/1"
MAX_TESTS = 10
FENCE = re.compile(r"```(?:python|py)?[ \t]*\n(.*?)```", re.DOTALL)
LIMITS = Limits(cpu_seconds=5, wall_seconds=15.0)
CALL = """

import json as _json, sys as _sys
_result = {name}(*_json.loads(_sys.stdin.read()))
print("\\n" + _json.dumps(_result))
"""


@dataclass(frozen=True, slots=True)
class Tests:
    """Inputs and their expected outputs, of a function or of a whole program."""

    function: str | None
    cases: tuple[tuple[Any, Any], ...]


@dataclass(frozen=True, slots=True)
class Code(ProblemList):
    """Problems with tests; see `Task` for the contract of each member."""

    limits: Limits = LIMITS
    name: str = NAME
    is_repeatable: bool = False  # programs can read clocks and random numbers

    def score(self, index: int, completion: str) -> float:
        """1.0 iff the program passes every test; no partial credit. Raises Undecided when it fails only by timing out,
        and SandboxUnavailable."""
        tests = parse_tests(self.answer(index))
        program = find_program(answer_part(completion))
        if not program or len(program.encode("utf-8", "surrogatepass")) > MAX_PROGRAM // 2:
            return 0.0
        late = False
        for given, wanted in tests.cases:
            outcome = self._run(program, tests, given)
            late = late or outcome.ending is Ending.OUT_OF_TIME
            if outcome.ending is not Ending.OUT_OF_TIME and not _is_right(outcome, tests, wanted):
                return 0.0
        if late:
            raise Undecided("the program ran past its time")
        return 1.0

    def _run(self, program: str, tests: Tests, given: Any) -> Outcome:
        if tests.function is None:
            return run_program(program, given=given.encode(), limits=self.limits)
        call = program + CALL.format(name=tests.function)
        return run_program(call, given=json.dumps(given).encode(), limits=self.limits)


def find_program(text: str) -> str:
    """The last fenced block, or the whole text when there is none."""
    blocks = FENCE.findall(text)
    return str(blocks[-1] if blocks else text).strip()


def parse_tests(text: str) -> Tests:
    """Tests from JSON. Raises TaskError."""
    try:
        plain = json.loads(text)
        function, inputs, outputs = plain.get("function"), plain["inputs"], plain["outputs"]
        cases = tuple(zip(inputs, outputs, strict=True))
    except (ValueError, TypeError, AttributeError, KeyError, RecursionError) as error:
        raise TaskError('tests must be {"inputs": [..], "outputs": [..]} of one length') from error
    if not 1 <= len(cases) <= MAX_TESTS:
        raise TaskError(f"a problem has 1 to {MAX_TESTS} tests, not {len(cases)}")
    if function is None and not all(isinstance(part, str) for case in cases for part in case):
        raise TaskError("tests of a whole program are texts: its input and its output")
    if function is not None and not (isinstance(function, str) and function.isidentifier()):
        raise TaskError("`function` must be the name of a function")
    if function is not None and not all(isinstance(given, list) for given, _ in cases):
        raise TaskError("tests of a function are lists of arguments")
    return Tests(function, cases)


def load_code(parameters: Mapping[str, int | str], folder: Path | None) -> Code:
    """Build the task. Parameters: `data`, the digest of a data set with `prompt` and `tests`; `limit`.
    Raises TaskError, also where programs cannot be confined or have threads: a node that cannot score as
    others do does not take part."""
    if (reason := why_threadless()) is not None:
        raise TaskError(f"task {NAME}: {reason}")
    problems = load_problems(parameters, folder, right="tests")
    for number, problem in enumerate(problems):
        try:
            parse_tests(problem.answer)
        except TaskError as error:
            raise TaskError(f"problem {number}: {error}") from error
    return Code(problems, digest_of(SCORER_VERSION, *texts_of(problems)))


def _is_right(outcome: Outcome, tests: Tests, wanted: Any) -> bool:
    if outcome.ending is not Ending.DONE:
        return False
    said = outcome.output.decode("utf-8", "replace")
    if tests.function is None:
        return _lines(said) == _lines(wanted)
    try:
        return bool(json.loads(said.rstrip("\n").rpartition("\n")[2]) == wanted)
    except (ValueError, RecursionError):
        return False


def _lines(text: str) -> list[str]:
    """Lines without trailing whitespace, and without empty ones at the end."""
    return [line.rstrip() for line in text.rstrip().split("\n")]
