"""Data sets: what is accepted, and what is refused, naming the bad line."""

from __future__ import annotations

import io
import json
import tracemalloc
from collections.abc import Mapping, Sequence
from hashlib import sha256
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from roles.tasks import TaskError, load_task
from roles.tasks.problems import Problem, load_problems, parse_problems

ROWS = [{"prompt": "1+1?", "answer": "2", "source": "mine"}, {"prompt": "café\u2028?", "answer": "3"}]


def as_lines(rows: Sequence[Mapping[str, object]]) -> bytes:
    return "\n".join(json.dumps(row, ensure_ascii=False) for row in rows).encode("utf-8", "surrogatepass")


def as_parquet(rows: Sequence[Mapping[str, object]]) -> bytes:
    return packed(pa.Table.from_pylist([dict(row) for row in rows]))


def packed(table: pa.Table) -> bytes:
    sink = io.BytesIO()
    pq.write_table(table, sink)
    return sink.getvalue()


def keep(folder: Path, data: bytes) -> str:
    digest = sha256(data).hexdigest()
    (folder / digest).write_bytes(data)
    return digest


def test_parse_problems__after_the_mark_that_windows_writes() -> None:
    assert parse_problems(b"\xef\xbb\xbf" + as_lines(ROWS)) == parse_problems(as_lines(ROWS))


@pytest.mark.parametrize("form", [as_lines, as_parquet])
def test_parse_problems__both_forms_say_the_same(form: object) -> None:
    assert callable(form)
    assert parse_problems(form(ROWS)) == (Problem("1+1?", "2"), Problem("café\u2028?", "3"))


def test_parse_problems__a_file_that_says_one_text_again_and_again_is_refused_before_it_fills_the_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A few hundred bytes that expand to two gigabytes: whoever looks at a run reads what its creator pinned."""
    monkeypatch.setattr("roles.tasks.problems.MAX_CHARACTERS", 2**22)
    data = as_parquet([{"prompt": "p" * 60_000, "answer": "1"}] * 20_000)
    assert len(data) < 10_000
    tracemalloc.start()
    with pytest.raises(TaskError, match="characters together"):
        parse_problems(data)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2**25


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.string_view()])
def test_parse_problems__whatever_kind_of_text_a_file_has__each_is_decoded_once(kind: pa.DataType) -> None:
    data = packed(pa.table({"prompt": pa.array(["p" * 100_000] * 1024, kind), "answer": ["1"] * 1024}))
    usual = pa.default_memory_pool()
    pool = pa.proxy_memory_pool(usual)
    pa.set_memory_pool(pool)
    try:
        with pytest.raises(TaskError, match="100000 characters"):
            parse_problems(data)
    finally:
        pa.set_memory_pool(usual)
    assert pool.max_memory() < 2**24


def test_parse_problems__tests_may_be_an_object() -> None:
    tests = {"inputs": ["1"], "outputs": ["1"]}
    (problem,) = parse_problems(as_lines([{"prompt": "p", "tests": tests}]), right="tests")
    assert json.loads(problem.answer) == tests


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "is empty"),
        (b"\n\n", "is empty"),
        (b"not json", "line 1 of the data set is not JSON"),
        (b"[" * 100_000, "line 1 of the data set is not JSON"),
        (b"[1]", "row 1 of the data set is not an object"),
        (as_lines([ROWS[0], {"prompt": "p"}]), "row 2 of the data set has no `answer`"),
        (as_lines([{"prompt": "", "answer": "1"}]), "row 1 of the data set has no `prompt`"),
        (as_lines([{"prompt": "p", "answer": 7}]), "a text is meant, not int"),
        (as_lines([{"prompt": "x" * 10_000_000, "answer": "1"}]), "10000000 characters, too many"),
        (b'{"prompt": "\\ud800", "answer": "1"}', "its `prompt` is not valid Unicode"),
        (b"\xff\xfe", "neither Parquet nor UTF-8"),
        (b"PAR1 and no more", "not readable Parquet"),
        (as_parquet([{"prompt": "p", "other": "1"}]), "row 1 of the data set has no `answer`"),
        (as_parquet([{"prompt": [1], "answer": "1"}]), "column `prompt` of the data set: a text is meant, not list"),
        (packed(pa.table([["p"], ["q"], ["1"]], names=["prompt", "prompt", "answer"])), "not readable Parquet"),
        (as_parquet([{"prompt": b"p", "answer": "1"}]), "column `prompt` of the data set: a text is meant, not binary"),
    ],
)
def test_parse_problems__refuse(data: bytes, reason: str) -> None:
    with pytest.raises(TaskError, match=reason):
        parse_problems(data)


def test_load_problems__limit_takes_the_first(tmp_path: Path) -> None:
    digest = keep(tmp_path, as_lines(ROWS))
    assert load_problems({"data": digest, "limit": 1}, tmp_path) == (Problem("1+1?", "2"),)


@pytest.mark.parametrize("limit", [0, 3, True, "1"])
def test_load_problems__refuse_limit(tmp_path: Path, limit: int | str) -> None:
    with pytest.raises(TaskError, match="limit must be a whole number from 1 to 2"):
        load_problems({"data": keep(tmp_path, as_lines(ROWS)), "limit": limit}, tmp_path)


def test_load_problems__changed_bytes_are_refused(tmp_path: Path) -> None:
    digest = keep(tmp_path, as_lines(ROWS))
    (tmp_path / digest).write_bytes(as_lines(ROWS[:1]))
    with pytest.raises(TaskError, match="is not the data set that its name says"):
        load_problems({"data": digest}, tmp_path)


@pytest.mark.parametrize("name", ["", "problems.jsonl", "../" * 10, "A" * 64])
def test_load_problems__refuse_name(tmp_path: Path, name: str) -> None:
    with pytest.raises(TaskError, match="must be the SHA-256"):
        load_problems({"data": name}, tmp_path)


def test_match__compares_what_follows_the_mark(tmp_path: Path) -> None:
    task = load_task("match", {"data": keep(tmp_path, as_lines(ROWS)), "after": "Answer:"}, tmp_path)
    said = ["Answer: 2", "Answer: 3, no, Answer:  2 ", "2", "Answer: 3", "Answer: 2."]
    assert [task.score(0, text) for text in said] == [1.0, 1.0, 0.0, 0.0, 0.0]


def test_match__without_a_mark_the_whole_text_counts(tmp_path: Path) -> None:
    task = load_task("match", {"data": keep(tmp_path, as_lines(ROWS))}, tmp_path)
    assert (task.score(0, " 2\n"), task.score(0, "It is 2")) == (1.0, 0.0)
