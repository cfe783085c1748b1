"""Reads Thrift's compact protocol, as used by Parquet footers and page headers, from untrusted bytes.

Stricter than the protocol: field ids must increase, so no field can be given twice and read differently by two readers.
Every value keeps its wire type, because generated readers skip a field whose type they do not expect.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, TypeAlias

from roles.rollouts.errors import MalformedRollouts

TRUE: Final = 1
FALSE: Final = 2
BYTE: Final = 3
I16: Final = 4
I32: Final = 5
I64: Final = 6
BINARY: Final = 8
LIST: Final = 9
STRUCT: Final = 12

_MAX_DEPTH = 12
_BITS = {I16: 16, I32: 32, I64: 64}

Struct: TypeAlias = "dict[int, Value]"
Content: TypeAlias = "bool | int | bytes | tuple[Value, ...] | Struct"


@dataclass(frozen=True, slots=True)
class Value:
    """A value and its wire type."""

    kind: int
    content: Content


def read_struct(data: bytes, position: int, end: int) -> tuple[Struct, int]:
    """The struct that starts at `position`, and the position after it. Raises `MalformedRollouts`."""
    reader = _Reader(data, position, end)
    return reader.struct(0), reader.position


def integer(struct: Struct, field: int, kind: int) -> int:
    """An integer field of exactly this wire type. Raises `MalformedRollouts` when it is missing."""
    value = struct.get(field)
    if value is None or value.kind != kind or not isinstance(value.content, int):
        raise MalformedRollouts("a number that Parquet requires is missing")
    return value.content


def text(struct: Struct, field: int) -> str:
    """A string field. Raises `MalformedRollouts` when it is missing or not UTF-8."""
    value = struct.get(field)
    if value is None or not isinstance(value.content, bytes):
        raise MalformedRollouts("a text that Parquet requires is missing")
    try:
        return value.content.decode()
    except UnicodeDecodeError:
        raise MalformedRollouts("a text is not UTF-8") from None


def substruct(struct: Struct, field: int) -> Struct:
    """A struct field. Raises `MalformedRollouts` when it is missing."""
    value = struct.get(field)
    if value is None or not isinstance(value.content, dict):
        raise MalformedRollouts("a structure that Parquet requires is missing")
    return value.content


def substructs(struct: Struct, field: int) -> list[Struct]:
    """A list of structs. Raises `MalformedRollouts` when it is missing."""
    value = struct.get(field)
    if value is None or not isinstance(value.content, tuple):
        raise MalformedRollouts("a list that Parquet requires is missing")
    return [substruct({0: item}, 0) for item in value.content]


class _Reader:
    """A cursor over `data[position:end]`."""

    def __init__(self, data: bytes, position: int, end: int) -> None:
        self.position = position
        self._data = data
        self._end = end

    def struct(self, depth: int) -> Struct:
        if depth > _MAX_DEPTH:
            raise MalformedRollouts("structures nested too deep")
        fields: Struct = {}
        number = 0
        while header := self._byte():
            delta, kind = header >> 4, header & 15
            if not delta:
                raise MalformedRollouts("field ids do not rise")
            number += delta
            fields[number] = Value(kind, self._content(kind, depth))
        return fields

    def _content(self, kind: int, depth: int) -> Content:
        if kind in (TRUE, FALSE):
            return kind == TRUE
        if kind == BYTE:
            return self._byte()
        if kind in _BITS:
            number = self._varint(_BITS[kind])
            return (number >> 1) ^ -(number & 1)
        if kind == BINARY:
            return self._take(self._varint(32))
        if kind == LIST:
            return self._list(depth)
        if kind == STRUCT:
            return self.struct(depth + 1)
        raise MalformedRollouts("a field of a type that Parquet does not use")

    def _list(self, depth: int) -> tuple[Value, ...]:
        header = self._byte()
        size, kind = header >> 4, header & 15
        if size == 15:
            size = self._varint(32)
        if size > self._end - self.position:  # every element takes at least one byte
            raise MalformedRollouts("a list longer than the file")
        if kind in (TRUE, FALSE):  # in lists the value takes a byte of its own
            return tuple(Value(kind, self._byte() == TRUE) for _ in range(size))
        return tuple(Value(kind, self._content(kind, depth + 1)) for _ in range(size))

    def _varint(self, bits: int) -> int:
        value = 0
        for shift in range(0, bits + 7, 7):
            byte = self._byte()
            value |= (byte & 127) << shift
            if byte < 128:
                break
        else:
            raise MalformedRollouts("a number is too long")
        if value >> bits:
            raise MalformedRollouts("a number is too large")
        return value

    def _byte(self) -> int:
        return self._take(1)[0]

    def _take(self, count: int) -> bytes:
        if count > self._end - self.position:
            raise MalformedRollouts("cut off")
        self.position += count
        return self._data[self.position - count : self.position]
