"""Integers as entropy-coded symbols and raw low bits, vectorised over arrays; and the small probability tables.

A number below 4 is its own symbol. A larger one is a symbol for its length and second bit, and the rest as raw bits:
`11 = 0b1011 -> symbol 6 (four bits, second one 0), low bits 0b11`. Symbols go through a range coder (`constriction`)
with one semi-static table per stream; probabilities that are off by 3% cost less than 0.001 bits a symbol.
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
"""Weight of a symbol by its nibble in a table: 0 is never, then half a bit less likely per step. Integers, so that they
are the same on every machine."""


def split_values(values: Integers) -> tuple[Integers, Integers, Integers]:
    """Symbols, widths of the low bits, and low bits, of numbers in [0, 2**31)."""
    exponents = values.astype(np.float64).view(np.int64) >> 51  # twice the exponent, plus the bit after the leading one
    symbols = np.maximum(exponents - 2 * 1023, np.minimum(values, 1))
    widths = symbol_widths(symbols)
    return symbols, widths, values & ((np.int64(1) << widths) - 1)


def symbol_widths(symbols: Integers) -> Integers:
    """Width of the low bits that belong to each symbol."""
    widths: Integers = np.maximum((symbols >> 1) - 1, 0)
    return widths


def join_values(symbols: Integers, low: Integers) -> Integers:
    """Recombine the numbers: inverse of `split_values`."""
    values: Integers = np.minimum(symbols, 2 + (symbols & 1)) << symbol_widths(symbols) | low
    return values


def pack_low(widths: Integers, low: Integers) -> bytes:
    """Pack the raw bits, grouped by width: an array of n numbers takes 31 steps, not n."""
    bits = [_to_bits(low[chosen], width) for width, chosen in _by_width(widths)]
    return np.packbits(np.concatenate(bits)).tobytes() if bits else b""


def unpack_low(widths: Integers, data: bytes) -> Integers:
    """Inverse of `pack_low`. Raises Malformed when the number of bytes does not match the widths."""
    if len(data) != (int(widths.sum()) + 7) // 8:
        raise Malformed("low bits do not fit their symbols")
    bits, low, start = np.unpackbits(np.frombuffer(data, np.uint8)), np.zeros(len(widths), np.int64), 0
    for width, chosen in _by_width(widths):
        end = start + width * len(chosen)
        low[chosen] = _from_bits(bits[start:end].reshape(-1, width))
        start = end
    return low


def _by_width(widths: Integers) -> Iterator[tuple[int, Integers]]:
    """Each non-zero width that occurs, and its positions in order."""
    narrow = widths.astype(np.uint8)  # sorted by counting, in one pass
    order, ends = np.argsort(narrow, kind="stable"), np.cumsum(np.bincount(narrow))
    for width, chosen in enumerate(np.split(order, ends[:-1])):
        if width and len(chosen):
            yield width, chosen


def _to_bits(values: Integers, width: int) -> NDArray[np.uint8]:
    room = _room(width)
    octets = values.astype(f">u{room // 8}").view(np.uint8)  # flat: along an axis each row would be a separate call
    return np.unpackbits(octets).reshape(-1, room)[:, room - width :].ravel()


def _from_bits(bits: NDArray[np.uint8]) -> NDArray[np.uint32]:
    room = _room(bits.shape[1])
    words = np.zeros((len(bits), room), np.uint8)
    words[:, room - bits.shape[1] :] = bits
    return np.packbits(words).view(f">u{room // 8}").astype(np.uint32)


def _room(width: int) -> int:
    """Bits of the smallest integer type that holds `width` bits, so that fewer surplus bits must be cut off."""
    return next(room for room in (8, 16, 32) if width <= room)


def build_tables(streams: Sequence[Integers]) -> list[bytes]:
    """Code the probabilities of each stream's symbols: the nibble count less one, then two nibbles a
    byte. No stream is empty."""
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
    """Number of bytes after a table's first one."""
    return (first + 2) // 2


def table_model(table: bytes) -> constriction.stream.model.Categorical:
    """The range coder's model for a table. Raises Malformed when no symbol has a probability."""
    packed = np.frombuffer(table, np.uint8, offset=1)
    nibbles = np.empty(2 * len(packed), np.uint8)
    nibbles[::2], nibbles[1::2] = packed >> 4, packed & 15
    nibbles = nibbles[: table[0] + 1]
    if len(nibbles) < 2 or not nibbles.any():
        raise Malformed("table of odds is empty")
    return constriction.stream.model.Categorical(_WEIGHTS[nibbles], perfect=False)


def encode_streams(streams: Iterable[tuple[Integers, bytes]]) -> bytes:
    """Code streams of symbols, each with its table, through one range coder."""
    coder = constriction.stream.queue.RangeEncoder()
    for symbols, table in streams:
        coder.encode(symbols.astype(np.int32), table_model(table))
    words: Words = coder.get_compressed()
    return words.astype("<u4").tobytes()


def decode_streams(data: bytes, wanted: list[tuple[int, bytes]]) -> list[Integers]:
    """Decode the streams, given their lengths and tables. Raises Malformed on bytes that no encoder made.

    The caller limits the lengths, because that many symbols are held.
    """
    if len(data) % 4:
        raise Malformed("range coder's words are cut")
    coder = constriction.stream.queue.RangeDecoder(np.frombuffer(data, "<u4").astype(np.uint32))
    try:
        return [np.asarray(coder.decode(table_model(table), count), np.int64) for count, table in wanted]
    except AssertionError as error:
        raise Malformed("range coder met bytes no encoder makes") from error
