"""Malicious files in place of a rollout file, built from an honest one by hand or with the library."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import replace

import pyarrow as pa
import pyarrow.parquet as pq

from roles.rollouts.schema import RolloutFile, write_rollouts

Bomb = Callable[[RolloutFile], bytes]
MILLION = 1_000_000
MAGIC = b"PAR1"
_COLUMN = b"\x15\x02\x25\x00\x18\x01c\x00"
"""One element of a Parquet schema: required int32, named `c`."""


def cut(file: RolloutFile) -> bytes:
    """Half of an honest file."""
    data = write_rollouts(file)
    return data[: len(data) // 2]


def zeros(file: RolloutFile) -> bytes:
    """A proof of 200 MB of zeros, which compresses to a few kilobytes."""
    return write_rollouts(replace(file, rows=(replace(file.rows[0], proof=bytes(200 * MILLION)), *file.rows[1:])))


def levels(file: RolloutFile) -> bytes:
    """Twenty million tokens in one row."""
    endless = pa.array([[0]], pa.list_(pa.field("element", pa.int32(), nullable=False)))
    tokens = pa.ListArray.from_arrays(
        pa.array([0, 20 * MILLION], pa.int32()), pa.nulls(20 * MILLION, pa.int32()).fill_null(0)
    )
    return _with_column(file, "output_tokens", tokens.cast(endless.type))


def dictionary(file: RolloutFile) -> bytes:
    """One text of a megabyte, referenced by every row through a dictionary index."""
    text = pa.array(["x" * MILLION] * len(file.rows))
    return _with_column(file, "run", text, use_dictionary=True)


def nested(file: RolloutFile) -> bytes:
    """Columns nested 200 deep."""
    kind: pa.DataType = pa.int8()
    for _ in range(200):
        kind = pa.struct([pa.field("s", kind)])
    return _written(pa.table({"deep": pa.nulls(1, kind)}))


def million_columns(file: RolloutFile) -> bytes:
    """A footer that declares a million columns, in eight bytes each."""
    schema = b"\x48\x01s\x15" + _varint(2 * MILLION) + b"\x00" + _COLUMN * MILLION
    footer = b"\x15\x02" + b"\x19\xfc" + _varint(MILLION + 1) + schema + b"\x16\x02\x19\x0c\x00"
    return MAGIC + footer + len(footer).to_bytes(4, "little") + MAGIC


def endless_list(file: RolloutFile) -> bytes:
    """A footer of a few bytes that announces a list of four thousand million entries."""
    footer = b"\x15\x02" + b"\x19\xfc" + _varint(2**32 - 1)
    return MAGIC + footer + len(footer).to_bytes(4, "little") + MAGIC


def oversized(file: RolloutFile) -> bytes:
    """More bytes than any run accepts."""
    return write_rollouts(file) + bytes(2**25)


def _with_column(file: RolloutFile, name: str, values: pa.Array, **options: bool) -> bytes:
    table = pq.read_table(io.BytesIO(write_rollouts(file)))
    if len(values) < table.num_rows:
        table = table.slice(0, len(values))
    return _written(table.set_column(table.schema.get_field_index(name), table.schema.field(name), values), **options)


def _written(table: pa.Table, **options: bool) -> bytes:
    sink = io.BytesIO()
    settings = {"compression": "zstd", "use_dictionary": False, "write_statistics": False, "store_schema": False}
    pq.write_table(table, sink, **{**settings, **options})
    return sink.getvalue()


def _varint(value: int) -> bytes:
    parts = bytearray()
    while value > 0x7F:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*parts, value])
