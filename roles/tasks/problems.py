"""Problems from a file: JSON lines or Parquet, pinned by the SHA-256 of its bytes, read within limits.

A row has a `prompt` and an `answer` (text), or `tests` (an object) for programs; other fields are ignored.
"""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from roles.tasks.task import TaskError

MAX_FILE = 256 * 2**20
MAX_PROBLEMS = 1_000_000
MAX_TEXT = 64 * 1024
"""Maximum characters of a prompt or an answer; the tests of one program may have a mebibyte."""
MAX_TESTS = 2**20
MAX_CHARACTERS = 2**30
"""Maximum characters of all texts together: a Parquet file of a kilobyte can repeat one text a million times."""


@dataclass(frozen=True, slots=True)
class Problem:
    """A prompt and its right answer: a text or, for programs, the tests as JSON."""

    prompt: str
    answer: str


@dataclass(frozen=True, slots=True)
class ProblemList:
    """The part of a `Task` that follows from its list of problems."""

    problems: tuple[Problem, ...]
    digest: str

    @property
    def size(self) -> int:
        """How many problems there are."""
        return len(self.problems)

    def prompt(self, index: int) -> str:
        """The problem as its source words it. Raises IndexError outside `range(size)`."""
        return problem_at(self.problems, index).prompt

    def answer(self, index: int) -> str:
        """The right answer. Raises IndexError outside `range(size)`."""
        return problem_at(self.problems, index).answer


def load_problems(
    parameters: Mapping[str, int | str], folder: Path | None, *, right: str = "answer"
) -> tuple[Problem, ...]:
    """The problems of the file that parameter `data` (64 hex digits) names, stored in `folder` under that name.

    `limit` takes only the first ones. Raises TaskError naming the line and the fault.
    """
    digest = str(parameters.get("data", ""))
    problems = parse_problems(read_data(digest, folder), right=right)
    limit = parameters.get("limit", len(problems))
    if not isinstance(limit, int) or isinstance(limit, bool) or not 1 <= limit <= len(problems):
        raise TaskError(f"limit must be a whole number from 1 to {len(problems)}, not {limit!r}")
    return problems[:limit]


def read_data(digest: str, folder: Path | None) -> bytes:
    """The bytes of a data set. Raises TaskError when it is missing, too large, or does not match its digest."""
    if len(digest) != 64 or not set(digest) <= set("0123456789abcdef"):
        raise TaskError(
            'parameter `data` must be the SHA-256 of a data set; a draft names one by `file = "PATH"`, a command by --file'
        )
    path = (folder or Path()) / digest
    if folder is None or not path.is_file():
        raise TaskError(f"the data set {digest[:16]}.. is not on this machine: its relays have it, or put it at {path}")
    if path.stat().st_size > MAX_FILE:
        raise TaskError(f"{path}: a data set may have {MAX_FILE >> 20} MiB")
    data = path.read_bytes()
    if hashlib.sha256(data).hexdigest() != digest:
        raise TaskError(f"{path} is not the data set that its name says: delete it, it is fetched again")
    return data


def parse_problems(data: bytes, *, right: str = "answer") -> tuple[Problem, ...]:
    """Problems in the order of the file; `right` is the field with the right answer. Raises TaskError."""
    problems, characters = list[Problem](), 0
    for number, row in enumerate(read_rows(data), 1):
        problem = _problem(row, number, right)
        characters += len(problem.prompt) + len(problem.answer)
        if characters > MAX_CHARACTERS:
            raise TaskError(f"the texts of a data set may have {MAX_CHARACTERS} characters together")
        problems.append(problem)
    if not problems:
        raise TaskError("the data set is empty")
    return tuple(problems)


def read_rows(data: bytes) -> Iterable[Any]:
    """The rows of a data set, unchecked. Raises TaskError for bytes that are not a data set."""
    return _parquet_rows(data) if data[:4] == b"PAR1" else _json_rows(data)


def row_line(row: Any) -> str:
    """A row as a line of JSON."""
    return json.dumps(row, ensure_ascii=False, default=str)


def _problem(row: Any, number: int, right: str) -> Problem:
    if not isinstance(row, dict):
        raise TaskError(f"row {number} of the data set is not an object with fields")
    answer = row.get(right)
    if right == "tests" and isinstance(answer, dict):
        answer = json.dumps(answer)
    return Problem(_text(row.get("prompt"), number, "prompt"), _text(answer, number, right))


def _text(value: Any, number: int, field: str) -> str:
    if not isinstance(value, str) or not value.strip():
        raise TaskError(f"row {number} of the data set has no `{field}`: a text is meant, not {type(value).__name__}")
    if len(value) > (MAX_TESTS if field == "tests" else MAX_TEXT):
        raise TaskError(f"row {number} of the data set: its `{field}` has {len(value)} characters, too many")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise TaskError(f"row {number} of the data set: its `{field}` is not valid Unicode") from error
    return value


def _json_rows(data: bytes) -> Iterable[Any]:
    try:
        lines = data.decode("utf-8-sig").split("\n")  # splitlines would also split at characters inside a text
    except UnicodeDecodeError as error:
        raise TaskError("the data set is neither Parquet nor UTF-8 text") from error
    for number, line in enumerate(lines, 1):
        if number > MAX_PROBLEMS:
            raise TaskError(f"a data set may have {MAX_PROBLEMS} problems")
        if line.strip():
            try:
                yield json.loads(line)
            except (ValueError, RecursionError) as error:
                raise TaskError(f"line {number} of the data set is not JSON") from error


def _parquet_rows(data: bytes) -> Iterable[Any]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        file = pq.ParquetFile(io.BytesIO(data))
        if file.metadata.num_rows > MAX_PROBLEMS:
            raise TaskError(f"a data set may have {MAX_PROBLEMS} problems")
        wanted = [name for name in ("prompt", "answer", "tests") if name in file.schema_arrow.names]
        for name in wanted:
            _check_column(name, file.schema_arrow.field(name).type)
        file = pq.ParquetFile(io.BytesIO(data), read_dictionary=wanted)  # each text once, however often it is repeated
        for batch in file.iter_batches(batch_size=1024, columns=wanted):
            yield from ({name: batch[name][row].as_py() for name in wanted} for row in range(batch.num_rows))
    except (pa.ArrowException, OSError, ValueError, KeyError) as error:  # KeyError: a column that occurs twice
        if isinstance(error, TaskError):
            raise
        raise TaskError(f"the data set is not readable Parquet: {str(error)[:200]}") from error


def _check_column(name: str, kind: Any) -> None:
    """Allow only text columns: with lists and the like a kilobyte can declare any number. Raises TaskError."""
    from pyarrow import types

    kind = kind.value_type if types.is_dictionary(kind) else kind
    if not (types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind)):
        as_json = " (an object as its JSON)" if name == "tests" else ""
        raise TaskError(f"column `{name}` of the data set: a text is meant, not {str(kind)[:80]}{as_json}")


def problem_at(problems: Sequence[Problem], index: int) -> Problem:
    """The problem with that number. Raises IndexError outside `range(len(problems))`."""
    if not 0 <= index < len(problems):
        raise IndexError(f"problem {index} of {len(problems)}")
    return problems[index]


def texts_of(problems: Iterable[Problem]) -> Iterator[str]:
    """All texts of the problems, for their digest."""
    return (text for each in problems for text in (each.prompt, each.answer))


def digest_of(*parts: str) -> str:
    """SHA-256 over length-prefixed parts, from which a task's digest is made."""
    hashed = hashlib.sha256()
    for part in parts:
        body = part.encode()
        hashed.update(len(body).to_bytes(8) + body)
    return hashed.hexdigest()
