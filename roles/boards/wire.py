"""Wire format of boards over HTTP: length-prefixed rows, and a head that names board and serial. Pure.

`POST /board` takes rows and says which it holds; `POST /board/read` takes `{"board", "since", "keys"}` and answers a batch.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from dht.errors import Malformed

MAX_POSTED = 64
"""Rows of one post."""
MAX_POST = 256 * 1024
"""Their bytes together."""
MAX_KEYS = 256
"""Keys of one question."""
MAX_QUESTION = 96 * 1024
MAX_ANSWER = 2**20
"""Bytes of the rows in an answer; what is left comes with the next."""
MAX_ROW = 16 * 1024
_HEAD = 512
LARGEST_BATCH = MAX_ANSWER + MAX_ROW + _HEAD + 4 * (MAX_ANSWER // 64)
"""Bytes of an answer at most; no row has fewer than 64."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows of a board up to a serial."""

    board: str
    upto: int
    rows: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class Question:
    """What a reader asks for."""

    board: str
    since: int
    keys: tuple[str, ...]


def frame(parts: Iterable[bytes]) -> bytes:
    """Join parts, each behind its length."""
    return b"".join(len(part).to_bytes(4, "big") + part for part in parts)


def unframe(data: bytes, *, most: int) -> list[bytes]:
    """Split what `frame` joined: at most `most` parts of at most `MAX_ROW` bytes. Raises Malformed."""
    parts, position = list[bytes](), 0
    while position < len(data):
        size = int.from_bytes(data[position : position + 4], "big")
        position += 4
        if size > MAX_ROW or position + size > len(data) or len(parts) == most:
            raise Malformed("not rows behind their lengths")
        parts.append(data[position : position + size])
        position += size
    return parts


def pack_batch(batch: Batch) -> bytes:
    """A batch in wire form."""
    head = json.dumps({"board": batch.board, "upto": batch.upto}).encode()
    return frame([head, *batch.rows])


def parse_batch(data: bytes) -> Batch:
    """Parse a batch; its rows are not verified. Raises Malformed."""
    parts = unframe(data, most=1 + MAX_ANSWER // 64)
    if not parts or len(parts[0]) > _HEAD:
        raise Malformed("the board's answer has no head")
    try:
        head = json.loads(parts[0])
        board, upto = head["board"], head["upto"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise Malformed("the board's answer has no head") from error
    if not isinstance(board, str) or len(board) > 64 or type(upto) is not int or not 0 <= upto < 2**63:
        raise Malformed("the board's answer has no head")
    return Batch(board, upto, tuple(parts[1:]))


def pack_question(question: Question) -> bytes:
    """A question in wire form."""
    body = {"board": question.board, "since": question.since, "keys": list(question.keys)}
    return json.dumps(body).encode()


def parse_question(data: bytes) -> Question:
    """Parse a question. Raises Malformed."""
    try:
        body = json.loads(data)
        board, since, keys = body["board"], body["since"], body["keys"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise Malformed("not a question to a board") from error
    is_right = isinstance(board, str) and len(board) <= 64 and type(since) is int and 0 <= since < 2**63
    if not is_right or not _are_keys(keys):
        raise Malformed("not a question to a board")
    return Question(board, since, tuple(keys))


def _are_keys(keys: object) -> bool:
    if not isinstance(keys, list) or len(keys) > MAX_KEYS:
        return False
    return all(isinstance(key, str) and len(key) <= 256 for key in keys)


def posts(rows: Sequence[bytes]) -> Iterable[list[bytes]]:
    """Cut rows into portions that fit one post."""
    portion, size = list[bytes](), 0
    for row in rows:
        if portion and (len(portion) == MAX_POSTED or size + len(row) + 4 > MAX_POST):
            yield portion
            portion, size = [], 0
        portion.append(row)
        size += len(row) + 4
    if portion:
        yield portion
