"""The footer of a rollout file, checked before the Parquet library sees it.

Arrow's reader aborts the whole process on some inconsistent footers (its metadata accessors let C++ exceptions escape),
so the footer is parsed here, and the library only gets files whose footer is consistent.
"""

from __future__ import annotations

from dataclasses import dataclass

from roles.rollouts.errors import MalformedRollouts
from roles.rollouts.thrift import I32, I64, Struct, Value, integer, read_struct, substruct, substructs, text

MAX_FOOTER = 64 * 1024
_MAGIC = b"PAR1"
_FRAME = 12  # magic, footer length, magic
_ZSTD = 6
_ENCRYPTION = frozenset({8, 9})
_CHUNK_REFUSED = frozenset({1, 8, 9})  # another file's path, encryption
_COLUMN_REFUSED = frozenset({10, 11})  # index and dictionary pages


@dataclass(frozen=True, slots=True)
class ColumnChunk:
    """The location of one column's pages, and the number of values that the footer claims for them."""

    physical_type: int
    path: tuple[str, ...]
    start: int
    length: int
    values: int


@dataclass(frozen=True, slots=True)
class Footer:
    """The footer of a file with one row group. `schema` is the list of schema elements as parsed."""

    schema: tuple[Value, ...]
    rows: int
    columns: tuple[ColumnChunk, ...]
    metadata: dict[str, str]


def read_footer(data: bytes) -> Footer:
    """Parse and check the footer. Raises `MalformedRollouts`, and nothing else, for any bytes."""
    start, end = _locate(data)
    file, position = read_struct(data, start, end)
    if position != end:
        raise MalformedRollouts("bytes behind the footer")
    if file.keys() & _ENCRYPTION:
        raise MalformedRollouts("an encrypted file")
    rows = integer(file, 3, I64)
    integer(file, 1, I32)
    groups = substructs(file, 4)
    if len(groups) != 1 or integer(groups[0], 3, I64) != rows:
        raise MalformedRollouts(f"{rows} rows in {len(groups)} row groups")
    integer(groups[0], 2, I64)
    substructs(file, 2)
    schema = file[2].content
    assert isinstance(schema, tuple)  # noqa: S101 - `substructs` has refused all else
    columns = tuple(_read_column(chunk, start) for chunk in substructs(groups[0], 1))
    return Footer(schema=schema, rows=rows, columns=columns, metadata=_read_metadata(file))


def _locate(data: bytes) -> tuple[int, int]:
    """Locate the footer without parsing it."""
    if len(data) < _FRAME or data[:4] != _MAGIC or data[-4:] != _MAGIC:
        raise MalformedRollouts("not a Parquet file")
    length = int.from_bytes(data[-8:-4], "little")
    if not 0 < length <= min(MAX_FOOTER, len(data) - _FRAME):
        raise MalformedRollouts("footer of an impossible length")
    return len(data) - 8 - length, len(data) - 8


def _read_column(chunk: Struct, end: int) -> ColumnChunk:
    integer(chunk, 2, I64)
    column = substruct(chunk, 3)
    if chunk.keys() & _CHUNK_REFUSED or column.keys() & _COLUMN_REFUSED or integer(column, 4, I32) != _ZSTD:
        raise MalformedRollouts("a column is not plain zstd")
    start, length, values = (integer(column, field, I64) for field in (9, 7, 5))
    if start < len(_MAGIC) or length < 0 or start + length > end:
        raise MalformedRollouts("a column lies outside the file")
    if integer(column, 6, I64) < 0 or values < 0:
        raise MalformedRollouts("a column of negative size")
    return ColumnChunk(integer(column, 1, I32), _read_texts(column, 3), start, length, values)


def _read_texts(struct: Struct, field: int) -> tuple[str, ...]:
    value = struct.get(field)
    if value is None or not isinstance(value.content, tuple):
        raise MalformedRollouts("a list that Parquet requires is missing")
    return tuple(text({0: item}, 0) for item in value.content)


def _read_metadata(file: Struct) -> dict[str, str]:
    if 5 not in file:
        return {}
    pairs = [(text(pair, 1), text(pair, 2)) for pair in substructs(file, 5)]
    if len({key for key, _ in pairs}) != len(pairs):
        raise MalformedRollouts("a metadata key twice")
    return dict(pairs)
