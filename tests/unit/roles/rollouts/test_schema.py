"""The rollout file: what it stores, and every way in which a stranger may corrupt it."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from roles.rollouts.errors import MalformedRollouts
from roles.rollouts.footer import read_footer
from roles.rollouts.pages import MOST_PAGES, measure_chunk
from roles.rollouts.schema import SCHEMA, read_rollouts, write_rollouts
from tests.unit.roles.rollouts.rollout_builders import LIMITS, make_file, make_row

METADATA = {
    "schema": "rollouts/1",
    "run": "ab" * 32,
    "node": "12D3KooWExample",
    "step": "7",
    "policy": "cd" * 32,
    "policy_step": "5",
    "index": "3",
}


def valid_table() -> pa.Table:
    """The columns of `make_file()`, to be spoilt."""
    return pq.read_table(io.BytesIO(write_rollouts(make_file()))).cast(SCHEMA)


def write_table(table: pa.Table, metadata: dict[str, str] | None = None, **options: Any) -> bytes:
    """A Parquet file by the writer's own settings, but for `options`."""
    settings: dict[str, Any] = {"compression": "zstd", "use_dictionary": False, "write_statistics": False}
    sink = io.BytesIO()
    with pq.ParquetWriter(sink, table.schema, **{**settings, "store_schema": False, **options}) as writer:
        writer.write_table(table)
        writer.add_key_value_metadata(METADATA if metadata is None else metadata)
    return sink.getvalue()


def with_column(name: str, values: list[Any], kind: pa.DataType | None = None, *, nullable: bool = False) -> pa.Table:
    field = pa.field(name, kind or SCHEMA.field(name).type, nullable=nullable or SCHEMA.field(name).nullable)
    return valid_table().set_column(SCHEMA.names.index(name), field, pa.array(values, type=field.type))


def assert_refused(data: bytes, reason: str) -> None:
    with pytest.raises(MalformedRollouts, match=reason):
        read_rollouts(data, LIMITS)


def test_read_rollouts__gives_back_what_was_written() -> None:
    file = make_file()
    assert read_rollouts(write_rollouts(file), LIMITS) == file


def test_read_rollouts__largest_file_within_the_limits() -> None:
    row = make_row(
        prompt=tuple(range(20)) * 3 + (1, 2, 3, 4),
        output=tuple(range(16)) * 4,
        output_logprobs=tuple(-i / 7 for i in range(64)),
        proof=bytes(range(256)) * 2 + bytes(4),
    )
    assert len(read_rollouts(write_rollouts(make_file(*[row] * 64)), LIMITS).rows) == 64


def test_write_rollouts__equal_files_equal_bytes() -> None:
    assert write_rollouts(make_file()) == write_rollouts(make_file())


def test_read_rollouts__other_writer_of_the_same_table() -> None:
    assert read_rollouts(write_table(valid_table()), LIMITS) == make_file()


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"prompt": ()}, "prompt_tokens of"),
        ({"prompt": (1,) * 65}, "prompt_tokens of"),
        ({"output": (), "output_logprobs": None}, "output_tokens of"),
        ({"output": (1,) * 65, "output_logprobs": None}, "values|output_tokens of"),
        ({"output": (20,), "output_logprobs": None}, "outside the vocabulary"),
        ({"prompt": (-1,)}, "outside the vocabulary"),
        ({"reward": float("nan")}, "reward is not a finite"),
        ({"reward": float("inf")}, "reward is not a finite"),
        ({"temperature": float("nan")}, "temperature is not a finite"),
        ({"temperature": -1.0}, "temperature is negative"),
        ({"output_logprobs": (0.0, 0.0, float("-inf"))}, "output_logprobs is not a finite"),
        ({"output_logprobs": (0.0,)}, "differ in number"),
        ({"output_logprobs": ()}, "differ in number"),
        ({"seed": -1}, "seed is negative"),
        ({"group": -1}, "group is negative"),
        ({"problem_id": -1}, "problem_id is negative"),
        ({"target_length": -1}, "target_length is negative"),
        ({"finish": "stop"}, "finish reason"),
        ({"proof": bytes(517)}, "proof is too long"),
    ],
)
def test_read_rollouts__refuse_value(changes: dict[str, Any], reason: str) -> None:
    assert_refused(write_rollouts(make_file(make_row(), make_row(**changes))), reason)


@pytest.mark.parametrize("changes", [{"step": -1}, {"policy_step": -1}, {"index": -1}])
def test_read_rollouts__refuse_negative_header(changes: dict[str, Any]) -> None:
    assert_refused(write_rollouts(make_file(**changes)), "is negative")


def test_read_rollouts__refuse_too_many_rows() -> None:
    assert_refused(write_rollouts(make_file(*[make_row()] * 65)), "65 rows")


def test_read_rollouts__refuse_no_rows() -> None:
    assert_refused(write_table(valid_table().slice(0, 0)), "0 rows|outside the file")


def test_read_rollouts__refuse_two_row_groups() -> None:
    sink = io.BytesIO()
    with pq.ParquetWriter(sink, SCHEMA, compression="zstd", use_dictionary=False, store_schema=False) as writer:
        writer.write_table(valid_table())
        writer.write_table(valid_table())
    assert_refused(sink.getvalue(), "2 row groups")


def test_read_rollouts__refuse_oversize_before_parsing() -> None:
    assert_refused(bytes(LIMITS.max_bytes + 1), "more than")


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        pytest.param(lambda data: b"", "not a Parquet", id="empty"),
        pytest.param(lambda data: data[:-1], "not a Parquet", id="truncated"),
        pytest.param(lambda data: data[:100] + data[-100:], "footer|Parquet|column", id="middle_missing"),
        pytest.param(lambda data: data[:-8] + b"\xff\xff\xff\x7fPAR1", "impossible length", id="footer_length"),
        pytest.param(lambda data: data[:-8] + b"\x00\x00\x00\x00PAR1", "impossible length", id="no_footer"),
        pytest.param(lambda data: data[:-4] + b"PARE", "not a Parquet", id="encrypted"),
        pytest.param(
            lambda data: b"PAR1" + bytes(60_000) + b"\x60\xea\x00\x00PAR1", "behind the footer", id="zero_footer"
        ),
    ],
)
def test_read_rollouts__refuse_frame(spoil: Callable[[bytes], bytes], reason: str) -> None:
    assert_refused(spoil(write_rollouts(make_file())), reason)


@pytest.mark.parametrize(
    ("table", "reason"),
    [
        pytest.param(lambda: valid_table().drop_columns(["seed"]), "columns other", id="column_missing"),
        pytest.param(lambda: valid_table().append_column("x", pa.array([1, 2])), "columns other", id="column_more"),
        pytest.param(lambda: valid_table().select(SCHEMA.names[::-1]), "columns other", id="column_order"),
        pytest.param(lambda: with_column("seed", ["1", "2"], pa.string()), "columns other", id="column_type"),
        pytest.param(lambda: with_column("reward", [1.0, None], nullable=True), "columns other", id="null"),
        pytest.param(lambda: with_column("step", [7, 8]), "differs between rows", id="header_differs"),
        pytest.param(lambda: with_column("step", [8, 8]), "metadata disagrees", id="header_disagrees"),
        pytest.param(
            lambda: with_column("prompt_tokens", [[[1]], [[2]]], pa.list_(pa.list_(pa.int32()))),
            "columns other",
            id="nested",
        ),
    ],
)
def test_read_rollouts__refuse_table(table: Callable[[], pa.Table], reason: str) -> None:
    assert_refused(write_table(table()), reason)


@pytest.mark.parametrize(
    "metadata",
    [
        {},
        {**METADATA, "schema": "rollouts/2"},
        {**METADATA, "extra": "x"},
        {**METADATA, "step": "07"},
        {key: value for key, value in METADATA.items() if key != "run"},
    ],
)
def test_read_rollouts__refuse_metadata(metadata: dict[str, str]) -> None:
    assert_refused(write_table(valid_table(), metadata), "metadata disagrees")


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"compression": "gzip"}, "not plain zstd"),
        ({"compression": "none"}, "not plain zstd"),
        ({"use_dictionary": True}, "not plain zstd"),
        ({"data_page_version": "2.0"}, "no plain data page"),
        ({"column_encoding": {"seed": "DELTA_BINARY_PACKED"}}, "no plain data page"),
    ],
)
def test_read_rollouts__refuse_encoding(options: dict[str, Any], reason: str) -> None:
    assert_refused(write_table(valid_table(), **options), reason)


def bomb_of_zeros() -> bytes:
    """20 MB of zeros that compress to a few kilobytes."""
    return write_rollouts(make_file(make_row(proof=bytes(20_000_000))))


def bomb_of_dictionary() -> bytes:
    """One text of 100 kB, repeated 64 times for a byte each."""
    table = valid_table()
    rows = pa.concat_tables([table.slice(0, 1)] * 64)
    text = pa.array(["x" * 100_000] * 64)
    return write_table(rows.set_column(0, SCHEMA.field("run"), text), use_dictionary=True)


def bomb_of_levels() -> bytes:
    """A million tokens in one row."""
    return write_rollouts(make_file(make_row(output=(0,) * 1_000_000, output_logprobs=None)))


@pytest.mark.parametrize("bomb", [bomb_of_zeros, bomb_of_dictionary, bomb_of_levels])
def test_read_rollouts__refuse_bomb_without_decoding_it(bomb: Callable[[], bytes]) -> None:
    data = bomb()
    assert len(data) < LIMITS.max_bytes
    before = pa.total_allocated_bytes()
    peak = pa.default_memory_pool().max_memory() or 0
    assert_refused(data, "after decompression|plain zstd|holds .* values")
    assert pa.total_allocated_bytes() <= before + 1_000_000
    assert (pa.default_memory_pool().max_memory() or 0) <= max(peak, before + 2_000_000)


def test_measure_chunk__page_headers_not_the_footer() -> None:
    """The footer's sizes are mere claims. The library would allocate what the page headers say."""
    bomb = bomb_of_zeros()
    column = read_footer(bomb).columns[SCHEMA.names.index("proof")]
    assert column.length < 10_000
    assert measure_chunk(bomb, column.start, column.length).uncompressed > 20_000_000


def test_measure_chunk__of_many_empty_pages_few_are_read() -> None:
    empty = b"\x15\x00\x15\x00\x15\x00\x2c\x15\x00\x15\x00\x15\x06\x15\x06\x00\x00"
    assert measure_chunk(empty * MOST_PAGES, 0, len(empty) * MOST_PAGES).values == 0
    with pytest.raises(MalformedRollouts, match="more than 1024 pages"):
        measure_chunk(empty * 500_000, 0, len(empty) * 500_000)


def test_read_rollouts__refuse_100_000_columns() -> None:
    table = pa.table({f"c{i}": pa.array([1], type=pa.int8()) for i in range(100_000)})
    sink = io.BytesIO()
    pq.write_table(table, sink, compression="none", use_dictionary=False, write_statistics=False)
    with pytest.raises(MalformedRollouts, match="impossible length"):
        read_rollouts(sink.getvalue(), replace(LIMITS, max_bytes=1 << 30))


def test_read_rollouts__refuse_columns_nested_200_deep() -> None:
    kind: pa.DataType = pa.int8()
    for _ in range(200):
        kind = pa.struct([pa.field("s", kind)])
    sink = io.BytesIO()
    pq.write_table(pa.table({"deep": pa.nulls(1, kind)}), sink, store_schema=False)
    assert_refused(sink.getvalue(), "columns other|not plain zstd|impossible length|row groups")


@pytest.mark.parametrize(
    ("data", "start", "length"),
    [
        (b"\x15\x00", 0, 5),
        (b"\x15\x00", -1, 1),
        (bytes(10), 0, 10),
        (b"\x15\x00\x15\x90\x02\x15\x32", 0, 7),
        (b"\x15" + b"\xff" * 20, 0, 21),
        (b"\x1c" * 40, 0, 40),
    ],
)
def test_measure_chunk__refuse_garbage(data: bytes, start: int, length: int) -> None:
    with pytest.raises(MalformedRollouts):
        measure_chunk(data, start, length)


# -- turns ------------------------------------------------------------------------------------------------------------

IN_TURNS = replace(LIMITS, max_calls=1)


def turning(*turns: int) -> bytes:
    """A file of one row of three tokens with these turns."""
    return write_rollouts(make_file(make_row(turns=turns)))


def test_read_rollouts__with_turns() -> None:
    file = make_file(make_row(turns=(1, 1, 1)), make_row(group=1, output=(6,), output_logprobs=None, turns=(1,)))
    assert read_rollouts(write_rollouts(file), IN_TURNS) == file
    assert b"rollouts/2" in write_rollouts(file)


def test_write_rollouts__without_turns_the_bytes_are_of_version_1() -> None:
    assert b"rollouts/1" in write_rollouts(make_file())
    assert b"turns" not in write_rollouts(make_file())


@pytest.mark.parametrize("turns", [(1, 2), (1, 1, 1, 0, 0), (0, 1, 2), (1, 1, 0), (1, 1, 2), (4, -1), (2,), (1, -1, 3)])
def test_read_rollouts__refuse_turns(turns: tuple[int, ...]) -> None:
    with pytest.raises(MalformedRollouts, match="turns"):
        read_rollouts(turning(*turns), IN_TURNS)


def test_read_rollouts__the_run_decides_the_version() -> None:
    with pytest.raises(MalformedRollouts, match="columns other than the schema's"):
        read_rollouts(turning(1, 1, 1), LIMITS)
    with pytest.raises(MalformedRollouts, match="columns other than the schema's"):
        read_rollouts(write_rollouts(make_file()), IN_TURNS)
