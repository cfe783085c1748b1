"""What a Parquet column would cost to decode, read from its page headers before anything is decoded.

A few kilobytes can declare gigabytes: compressed pages, dictionaries and delta encodings all expand. The footer's sizes
are only claims, so each page header (Thrift compact protocol) is parsed here. Only plain, version 1 data pages pass, as
`schema.write_rollouts` makes them; everything else is refused. With plain encoding the decoded size is the page size.
"""

from __future__ import annotations

from dataclasses import dataclass

from roles.rollouts.errors import MalformedRollouts

_I32, _STRUCT, _STOP = 5, 12, 0
_DATA_PAGE, _PLAIN, _RLE = 0, 0, 3
_MAX_HEADER = 64


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
    uncompressed = values = 0
    position = start
    while position < end:
        header, position = _read_page_header(data, position, min(end, position + _MAX_HEADER))
        position += header.compressed
        uncompressed += header.uncompressed
        values += header.values
    if position != end:
        raise MalformedRollouts("a page reaches past its column")
    return ChunkCost(uncompressed, values)


@dataclass(frozen=True, slots=True)
class _PageHeader:
    uncompressed: int
    compressed: int
    values: int


def _read_page_header(data: bytes, position: int, end: int) -> tuple[_PageHeader, int]:
    fields, position = _read_struct(data, position, end, depth=0)
    try:
        kind, uncompressed, compressed = fields[1], fields[2], fields[3]
        values, *encodings = (fields[50 + i] for i in (1, 2, 3, 4))
    except KeyError:
        raise MalformedRollouts("a page is no plain data page") from None
    if kind != _DATA_PAGE or encodings != [_PLAIN, _RLE, _RLE]:
        raise MalformedRollouts("a page is no plain data page")
    if min(uncompressed, compressed, values) < 0:
        raise MalformedRollouts("a page declares a negative size")
    return _PageHeader(uncompressed, compressed, values), position


def _read_struct(data: bytes, position: int, end: int, *, depth: int) -> tuple[dict[int, int], int]:
    """Integer fields by id; those of the data page header (field 5) as 50 + id, and its statistics must be empty."""
    fields: dict[int, int] = {}
    number = 0
    while True:
        header, position = _read_byte(data, position, end)
        if header == _STOP:
            return fields, position
        delta, kind = header >> 4, header & 15
        number += delta
        if delta and kind == _I32 and depth < 2:
            fields[number], position = _read_i32(data, position, end)
        elif delta and kind == _STRUCT and number == 5 and depth < 2:
            inner, position = _read_struct(data, position, end, depth=depth + 1)
            fields |= {50 + key: value for key, value in inner.items()}
        else:
            raise MalformedRollouts("a page is no plain data page")


def _read_i32(data: bytes, position: int, end: int) -> tuple[int, int]:
    """A zigzag varint of at most 32 bits."""
    value = 0
    for shift in range(0, 35, 7):
        byte, position = _read_byte(data, position, end)
        value |= (byte & 127) << shift
        if byte < 128:
            return (value >> 1) ^ -(value & 1), position
    raise MalformedRollouts("a page header holds an overlong number")


def _read_byte(data: bytes, position: int, end: int) -> tuple[int, int]:
    if position >= end:
        raise MalformedRollouts("a page header is cut off or too long")
    return data[position], position + 1
