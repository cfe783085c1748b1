"""Whole numbers as entropy-coded symbols and raw low bits, all at once for an array; and the small tables of odds.

A number below 4 is a symbol of its own; a greater one is its length and next bit as a symbol, the rest as raw bits:
`11 = 0b1011 -> symbol 6 (four bits, second one 0), low bits 0b11`. Symbols go through a range coder (`constriction`)
with one semi-static table for each stream; 3% off the true odds costs less than 0.001 bits a symbol.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import constriction
import numpy as np
from numpy.typing import NDArray

from dht.errors import Malformed

Integers = NDArray[np.int64]
Words = NDArray[np.uint32]

VALUE_SYMBOLS = 64
"""Enough for 31 bits."""
_WEIGHTS = np.array([0, *(round(2**20 * 2 ** (-step / 2)) for step in range(15))], dtype=np.float64)
"""What a table's nibble says of a symbol's odds: 0 is never, then half a bit less likely a step. Integers: the same on
every machine."""


def split_values(values: Integers) -> tuple[Integers, Integers, Integers]:
    """Symbols, widths of the low bits, low bits, of numbers in [0, 2**31)."""
    exponents = values.astype(np.float64).view(np.int64) >> 51  # twice the exponent, and the bit after the first one
    symbols = np.maximum(exponents - 2 * 1023, np.minimum(values, 1))
    widths = symbol_widths(symbols)
    return symbols, widths, values & ((np.int64(1) << widths) - 1)


def symbol_widths(symbols: Integers) -> Integers:
    """Width of the low bits that belong to each symbol."""
    widths: Integers = np.maximum((symbols >> 1) - 1, 0)
    return widths


def join_values(symbols: Integers, low: Integers) -> Integers:
    """The numbers again: inverse of `split_values`."""
    values: Integers = np.minimum(symbols, 2 + (symbols & 1)) << symbol_widths(symbols) | low
    return values


def pack_low(widths: Integers, low: Integers) -> bytes:
    """Raw bits, those of one width together: an array of n numbers makes 31 steps, not n."""
    bits = [_to_bits(low[chosen], width) for width, chosen in _by_width(widths)]
    return np.packbits(np.concatenate(bits)).tobytes() if bits else b""


def unpack_low(widths: Integers, data: bytes) -> Integers:
    """Inverse of `pack_low`. Raises Malformed when the bytes are not exactly those the widths ask for."""
    if len(data) != (int(widths.sum()) + 7) // 8:
        raise Malformed("low bits do not fit their symbols")
    bits, low, start = np.unpackbits(np.frombuffer(data, np.uint8)), np.zeros(len(widths), np.int64), 0
    for width, chosen in _by_width(widths):
        end = start + width * len(chosen)
        low[chosen] = _from_bits(bits[start:end].reshape(-1, width))
        start = end
    return low


def _by_width(widths: Integers) -> Iterator[tuple[int, Integers]]:
    """Each width that occurs but 0, and where, in order."""
    narrow = widths.astype(np.uint8)  # sorted by counting, in one pass
    order, ends = np.argsort(narrow, kind="stable"), np.cumsum(np.bincount(narrow))
    for width, chosen in enumerate(np.split(order, ends[:-1])):
        if width and len(chosen):
            yield width, chosen


def _to_bits(values: Integers, width: int) -> NDArray[np.uint8]:
    room = _room(width)
    octets = values.astype(f">u{room // 8}").view(np.uint8)  # flat: along an axis each row is a call of its own
    return np.unpackbits(octets).reshape(-1, room)[:, room - width :].ravel()


def _from_bits(bits: NDArray[np.uint8]) -> NDArray[np.uint32]:
    room = _room(bits.shape[1])
    words = np.zeros((len(bits), room), np.uint8)
    words[:, room - bits.shape[1] :] = bits
    return np.packbits(words).view(f">u{room // 8}").astype(np.uint32)


def _room(width: int) -> int:
    """Bits of the least whole number that takes so many: what is not there need not be cut off."""
    return next(room for room in (8, 16, 32) if width <= room)


def build_tables(streams: Sequence[Integers]) -> list[bytes]:
    """Code the odds of each stream's symbols: the count of nibbles less one, then two nibbles a byte. No stream is empty."""
    counts = [np.bincount(symbols, minlength=2) for symbols in streams]
    table = np.zeros((len(counts), max(map(len, counts), default=0) + 1 & ~1))
    for row, part in zip(table, counts, strict=True):
        row[: len(part)] = part
    with np.errstate(divide="ignore"):
        steps = np.round(2 * np.log2(table.max(axis=1, keepdims=True, initial=1) / table))
    nibbles = np.where(table > 0, 1 + np.minimum(steps, 14), 0).astype(np.uint8)
    packed, lasts = nibbles[:, ::2] << 4 | nibbles[:, 1::2], [len(part) - 1 for part in counts]
    return [bytes([last]) + row[: table_length(last)].tobytes() for last, row in zip(lasts, packed, strict=True)]


def table_length(first: int) -> int:
    """Bytes after a table's first one."""
    return (first + 2) // 2


def table_model(table: bytes) -> constriction.stream.model.Categorical:
    """The range coder's model of a table. Raises Malformed when no symbol has odds."""
    packed = np.frombuffer(table, np.uint8, offset=1)
    nibbles = np.empty(2 * len(packed), np.uint8)
    nibbles[::2], nibbles[1::2] = packed >> 4, packed & 15
    nibbles = nibbles[: table[0] + 1]
    if len(nibbles) < 2 or not nibbles.any():
        raise Malformed("table of odds is empty")
    return constriction.stream.model.Categorical(_WEIGHTS[nibbles], perfect=False)


def encode_streams(streams: Iterable[tuple[Integers, bytes]]) -> bytes:
    """Streams of symbols, each with its table, through one range coder."""
    coder = constriction.stream.queue.RangeEncoder()
    for symbols, table in streams:
        coder.encode(symbols.astype(np.int32), table_model(table))
    words: Words = coder.get_compressed()
    return words.astype("<u4").tobytes()


def decode_streams(data: bytes, wanted: list[tuple[int, bytes]]) -> list[Integers]:
    """The streams again, of the lengths and tables given. Raises Malformed on bytes no encoder made.

    The caller bounds the lengths: that many symbols are held.
    """
    if len(data) % 4:
        raise Malformed("range coder's words are cut")
    coder = constriction.stream.queue.RangeDecoder(np.frombuffer(data, "<u4").astype(np.uint32))
    try:
        return [np.asarray(coder.decode(table_model(table), count), np.int64) for count, table in wanted]
    except AssertionError as error:
        raise Malformed("range coder met bytes no encoder makes") from error
