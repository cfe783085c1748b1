"""The rollout file: one Parquet file per submission, one row per completion, `rollouts/1` or, with turns, `rollouts/2`.

Owns the deterministic writer and a reader that is safe on hostile bytes: every size is checked before anything is
decoded. Knows nothing of tasks, policies or whether the content is true. The columns are those of the reference stack
plus what it lacked: run, node, step, policy digest, index, group, problem, seed, finish reason.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from functools import cache
from typing import Any, Literal, cast

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from roles.rollouts.columns import FILE_COLUMNS, IN_TURNS, PLAIN, SCHEMA, Layout
from roles.rollouts.errors import MalformedRollouts
from roles.rollouts.footer import MAX_FOOTER, Footer, read_footer
from roles.rollouts.pages import measure_chunk

__all__ = [
    "SCHEMA",
    "MalformedRollouts",
    "RolloutFile",
    "RolloutLimits",
    "RolloutRow",
    "read_rollouts",
    "write_rollouts",
]

Finish = Literal["eos", "length"]

_MAX_CONTAINER = 512  # entries of any list in the footer; ours has fewer than 40
_FIXED_ROW_BYTES = 1024  # a row's scalars, generously
_ARROW_ERRORS = (pa.ArrowException, OSError, ValueError, TypeError, KeyError, IndexError, OverflowError, MemoryError)


@dataclass(frozen=True, slots=True)
class RolloutRow:
    """One completion. `output` includes the end-of-sequence token when `finish` is "eos".

    `reward` and `temperature` are stored as float32. `output_logprobs` are for study only, never for training. `proof`
    is the concatenation of the TOPLOC records. `group` is the index of the prompt in the submission. `turns` are the
    lengths of the alternating turns of the policy and its tool (`roles.turns.spans`), empty in a run without a tool.
    """

    group: int
    problem_id: int
    prompt: tuple[int, ...]
    output: tuple[int, ...]
    reward: float
    seed: int
    temperature: float
    finish: Finish
    proof: bytes
    output_logprobs: tuple[float, ...] | None = None
    target_length: int | None = None
    turns: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class RolloutFile:
    """All completions of one submission. `run` and `policy` (manifest digest) are hex, `node` a peer id."""

    run: str
    node: str
    step: int
    policy: str
    policy_step: int
    index: int
    rows: tuple[RolloutRow, ...]


@dataclass(frozen=True, slots=True)
class RolloutLimits:
    """What a reader accepts, derived from the run spec. Lengths are tokens per row."""

    max_bytes: int
    max_rows: int
    max_prompt_tokens: int
    max_output_tokens: int
    vocabulary: int
    max_proof_bytes: int
    max_calls: int = 0  # of a tool in one completion; 0: the run has none, and its files no turns

    @property
    def layout(self) -> Layout:
        """The schema version of the run's files."""
        return IN_TURNS if self.max_calls else PLAIN

    @property
    def max_turns(self) -> int:
        """Maximum number of entries in `turns`."""
        return 2 * self.max_calls + 1

    @property
    def max_uncompressed(self) -> int:
        """Decoded bytes of the largest honest file: 4 per token, 4 per log-probability, and repetition levels."""
        row = 8 * self.max_prompt_tokens + 16 * self.max_output_tokens + self.max_proof_bytes + _FIXED_ROW_BYTES
        row += 8 * self.max_turns if self.max_calls else 0
        return self.max_rows * row + MAX_FOOTER


# Row columns are in the order of `RolloutRow`'s fields; only the last, `turns`, is not in every version.
_ROW_FIELDS = tuple(field.name for field in fields(RolloutRow))


def write_rollouts(file: RolloutFile) -> bytes:
    """The file's bytes: equal files give equal bytes (for one version of pyarrow)."""
    count = len(file.rows)
    layout = IN_TURNS if any(row.turns for row in file.rows) else PLAIN
    schema = layout.schema
    columns: list[pa.Array] = [
        pa.array([getattr(file, name)] * count, type=schema.field(name).type) for name in FILE_COLUMNS
    ]
    for column, field in zip(layout.rows, _ROW_FIELDS, strict=False):
        columns.append(pa.array([getattr(row, field) for row in file.rows], type=schema.field(column).type))
    sink = io.BytesIO()
    with pq.ParquetWriter(
        sink,
        schema,
        version="2.6",
        data_page_version="1.0",
        compression="zstd",
        use_dictionary=False,
        write_statistics=False,
        store_schema=False,
    ) as writer:
        writer.write_table(pa.table(columns, schema=schema), row_group_size=max(count, 1))
        writer.add_key_value_metadata(_file_metadata(file, layout))
    return sink.getvalue()


def read_rollouts(data: bytes, limits: RolloutLimits) -> RolloutFile:
    """Parse an untrusted rollout file, in time and memory bounded by `limits`.

    Raises `MalformedRollouts` with the reason, and nothing else, for any bytes.
    """
    if len(data) > limits.max_bytes:
        raise MalformedRollouts(f"{len(data)} bytes, more than {limits.max_bytes}")
    footer = read_footer(data)
    _check_layout(footer, data, limits)
    with _refusals():
        table = _read_table(data, limits.layout)
        file = _to_file(table, footer.metadata, limits.layout)
    _check_values(table, limits)
    return file


def _read_table(data: bytes, layout: Layout) -> pa.Table:
    """Decode with Arrow, single-threaded. Its metadata accessors are not used: see `footer`."""
    parquet = pq.ParquetFile(
        pa.BufferReader(data),
        thrift_string_size_limit=MAX_FOOTER,
        thrift_container_size_limit=_MAX_CONTAINER,
        pre_buffer=False,
    )
    table = parquet.read(use_threads=False)
    if not table.schema.remove_metadata().equals(layout.schema):
        raise MalformedRollouts("columns other than the schema's")
    table.validate(full=True)
    return table


def _file_metadata(file: RolloutFile, layout: Layout) -> dict[str, str]:
    return {"schema": layout.version, **{name: str(getattr(file, name)) for name in FILE_COLUMNS}}


@cache
def _expected_footer(layout: Layout) -> Footer:
    """The footer of a file of ours: schema elements, types and paths are the same in all files of a version."""
    turns = (1,) if layout is IN_TURNS else ()
    row = RolloutRow(0, 0, (0,), (0,), 0.0, 0, 0.0, "length", b"", (0.0,), 0, turns)
    return read_footer(write_rollouts(RolloutFile("", "", 0, "", 0, 0, (row,))))


def _check_layout(footer: Footer, data: bytes, limits: RolloutLimits) -> None:
    """Check schema, row count, and decoding cost, from the footer and the page headers only."""
    expected = _expected_footer(limits.layout)
    layout = [(column.physical_type, column.path) for column in footer.columns]
    if footer.schema != expected.schema or layout != [(c.physical_type, c.path) for c in expected.columns]:
        raise MalformedRollouts("columns other than the schema's")
    if not 1 <= footer.rows <= limits.max_rows:
        raise MalformedRollouts(f"{footer.rows} rows, not 1 to {limits.max_rows}")
    most_values = footer.rows * max(limits.max_prompt_tokens, limits.max_output_tokens, limits.max_turns)
    uncompressed = 0
    for name, column in zip(limits.layout.schema.names, footer.columns, strict=True):
        cost = measure_chunk(data, column.start, column.length)
        if cost.values != column.values or cost.values > most_values:
            raise MalformedRollouts(f"column {name} holds {cost.values} values")
        uncompressed += cost.uncompressed
    if uncompressed > limits.max_uncompressed:
        raise MalformedRollouts(f"{uncompressed} bytes after decompression, more than {limits.max_uncompressed}")


def _to_file(table: pa.Table, metadata: dict[str, str], layout: Layout) -> RolloutFile:
    """The table as values. Raises `MalformedRollouts` when a per-file column varies or contradicts the metadata."""
    header: dict[str, Any] = {}
    for name in FILE_COLUMNS:
        values = set(table.column(name).to_pylist())
        if len(values) != 1:
            raise MalformedRollouts(f"column {name} differs between rows")
        header[name] = values.pop()
    columns = [_column_values(table.column(name)) for name in layout.rows]
    rows = tuple(RolloutRow(*values) for values in zip(*columns, strict=True))
    file = RolloutFile(rows=rows, **header)
    if metadata != _file_metadata(file, layout):
        raise MalformedRollouts("metadata disagrees with the columns or is of another schema version")
    return file


def _column_values(column: pa.ChunkedArray) -> list[Any]:
    values = column.to_pylist()
    if pa.types.is_list(column.type):
        return [None if value is None else tuple(value) for value in values]
    return cast(list[Any], values)


def _check_values(table: pa.Table, limits: RolloutLimits) -> None:
    """Check the bounds of every value, column by column."""
    for name in ("step", "policy_step", "index", "group", "problem_id", "seed", "target_length"):
        if _numbers(table, name).min(initial=0) < 0:
            raise MalformedRollouts(f"{name} is negative")
    for name in ("reward", "temperature", "output_logprobs"):
        if not np.isfinite(_numbers(table, name)).all():
            raise MalformedRollouts(f"{name} is not a finite number")
    if _numbers(table, "temperature").min(initial=0) < 0:
        raise MalformedRollouts("temperature is negative")
    for name, most in (("prompt_tokens", limits.max_prompt_tokens), ("output_tokens", limits.max_output_tokens)):
        lengths = _lengths(table, name)
        if lengths.min() < 1 or lengths.max() > most:
            raise MalformedRollouts(f"{name} of {lengths.min()} to {lengths.max()} tokens, not of 1 to {most}")
        tokens = _numbers(table, name)
        if tokens.min() < 0 or tokens.max() >= limits.vocabulary:
            raise MalformedRollouts(f"{name} outside the vocabulary")
    if not set(table.column("finish_reason").to_pylist()) <= {"eos", "length"}:
        raise MalformedRollouts("unknown finish reason")
    if max(len(proof) for proof in table.column("proof").to_pylist()) > limits.max_proof_bytes:
        raise MalformedRollouts("a proof is too long")
    if limits.max_calls:
        _check_turns(table, limits)
    logprobs = _lengths(table, "output_logprobs")
    if ((logprobs != _lengths(table, "output_tokens")) & (logprobs >= 0)).any():
        raise MalformedRollouts("log-probabilities and tokens differ in number")


def _check_turns(table: pa.Table, limits: RolloutLimits) -> None:
    """Check that each row's turns add up to its output, start and end with the policy, and
    have no empty policy turn."""
    for output, turns in zip(_lengths(table, "output_tokens"), table.column("turns").to_pylist(), strict=True):
        if not len(turns) % 2 or len(turns) > limits.max_turns:
            raise MalformedRollouts(f"{len(turns)} turns")
        if min(turns) < 0 or min(turns[::2]) < 1 or sum(turns) != output:
            raise MalformedRollouts("turns that do not add up to the output")


def _numbers(table: pa.Table, name: str) -> np.ndarray[Any, np.dtype[Any]]:
    """A column's numbers, with lists concatenated and nulls left out."""
    column = table.column(name).combine_chunks()
    flat = column.flatten() if pa.types.is_list(column.type) else column
    return np.asarray(flat.drop_null())


def _lengths(table: pa.Table, name: str) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Length of each list; -1 for null."""
    lengths = [-1 if value is None else len(value) for value in table.column(name).to_pylist()]
    return np.array(lengths, dtype=np.int64)


@contextmanager
def _refusals() -> Iterator[None]:
    """Turn whatever the library raises on hostile bytes into `MalformedRollouts`."""
    try:
        yield
    except _ARROW_ERRORS as error:
        raise MalformedRollouts(f"not readable as Parquet ({type(error).__name__})") from error
