"""The cost of decoding a Parquet column, read from its page headers before anything is decoded.

A few kilobytes can declare gigabytes: compressed pages, dictionaries and delta encodings all expand. The footer's sizes
are only claims, so each page header is parsed here. Only plain version 1 data pages are accepted, as
`schema.write_rollouts` makes them. With plain encoding the decoded size is the page size.
"""

from __future__ import annotations

from dataclasses import dataclass

from roles.rollouts.errors import MalformedRollouts
from roles.rollouts.thrift import I32, Struct, integer, read_struct, substruct

_DATA_PAGE, _PLAIN, _RLE = 0, 0, 3
_MAX_HEADER = 512
MOST_PAGES = 1024
"""Maximum pages per column: Arrow puts a MiB into each. Empty ones are cheap to send, but reading one takes 13 us."""
_FIELDS = frozenset(
    {1, 2, 3, 4, 5}
)  # type, sizes, checksum, data page header: no dictionary, index or version 2 header


@dataclass(frozen=True, slots=True)
class ChunkCost:
    """Bytes after decompression and number of values of one column chunk."""

    uncompressed: int
    values: int


def measure_chunk(data: bytes, start: int, length: int) -> ChunkCost:
    """Walk the pages of `data[start:start + length]`. Raises `MalformedRollouts` unless all are plain data pages."""
    end = start + length
    if start < 0 or length < 0 or end > len(data):
        raise MalformedRollouts("a column lies outside the file")
    uncompressed = values = pages = 0
    position = start
    while position < end:
        pages += 1
        if pages > MOST_PAGES:
            raise MalformedRollouts(f"a column of more than {MOST_PAGES} pages")
        header, position = read_struct(data, position, min(end, position + _MAX_HEADER))
        cost = _measure_page(header)
        uncompressed += cost.uncompressed
        values += cost.values
        position += _size(header, 3)
    if position != end:
        raise MalformedRollouts("a page reaches past its column")
    return ChunkCost(uncompressed, values)


def _measure_page(header: Struct) -> ChunkCost:
    if not header.keys() <= _FIELDS or integer(header, 1, I32) != _DATA_PAGE:
        raise MalformedRollouts("a page is no plain data page")
    data_page = substruct(header, 5)
    encodings = [integer(data_page, field, I32) for field in (2, 3, 4)]
    if encodings != [_PLAIN, _RLE, _RLE]:
        raise MalformedRollouts("a page is no plain data page")
    return ChunkCost(uncompressed=_size(header, 2), values=_size(data_page, 1))


def _size(struct: Struct, field: int) -> int:
    size = integer(struct, field, I32)
    if size < 0:
        raise MalformedRollouts("a page declares a negative size")
    return size
