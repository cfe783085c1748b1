"""Wire format of boards over HTTP: length-prefixed rows, and a header that names board and serial. Pure.

`POST /board` takes rows and returns which of them it holds; `POST /board/read` takes `{"board", "since",
"keys"}` and returns a batch.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from dht.errors import Malformed

MAX_POSTED = 64
"""Rows per post."""
MAX_POST = 256 * 1024
"""Total bytes of a post."""
MAX_KEYS = 256
"""Keys per request."""
MAX_QUESTION = 96 * 1024
MAX_ANSWER = 2**20
"""Bytes of rows in a response; the rest comes with the next."""
MAX_ROW = 16 * 1024
_HEAD = 512
LARGEST_BATCH = MAX_ANSWER + MAX_ROW + _HEAD + 4 * (MAX_ANSWER // 64)
"""Maximum bytes of a response; every row has at least 64."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows of a board up to a serial."""

    board: str
    upto: int
    rows: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class Question:
    """A reader's request."""

    board: str
    since: int
    keys: tuple[str, ...]


def frame(parts: Iterable[bytes]) -> bytes:
    """Join parts, each prefixed with its length."""
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
    """Encode a batch."""
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
    """Encode a request."""
    body = {"board": question.board, "since": question.since, "keys": list(question.keys)}
    return json.dumps(body).encode()


def parse_question(data: bytes) -> Question:
    """Parse a request. Raises Malformed."""
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
    """Split rows into batches that fit one post each."""
    portion, size = list[bytes](), 0
    for row in rows:
        if portion and (len(portion) == MAX_POSTED or size + len(row) + 4 > MAX_POST):
            yield portion
            portion, size = [], 0
        portion.append(row)
        size += len(row) + 4
    if portion:
        yield portion
