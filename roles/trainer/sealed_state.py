"""The trainer's private state (fp32 weights, optimizer moments), encrypted to every trainer of the run, as relay blobs.

One *index* blob lists the pieces in order and carries the stream's key, sealed to each trainer's node key (X25519 from
ed25519). The pieces form one XChaCha20-Poly1305 stream (libsodium's secretstream), so none can be changed, dropped,
moved or taken from another state. Blocking; knows no network.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Literal

from nacl import bindings as sodium
from nacl.exceptions import CryptoError
from pydantic import Field

from dht.disk import make_folder, write_durably
from dht.encoding import Digest, Message, Natural, decode, encode, pack, sha256
from dht.errors import Malformed
from dht.identity import NodeId, NodeKey, seal_to
from roles.messages import NodeName, StateRef

StreamState = sodium.crypto_secretstream_xchacha20poly1305_state
PIECE = 4 * 2**20
"""Plaintext bytes per piece: below what relays accept as one blob (8 MiB by default)."""
MORE = sodium.crypto_secretstream_xchacha20poly1305_TAG_MESSAGE
FINAL = sodium.crypto_secretstream_xchacha20poly1305_TAG_FINAL
MAX_PIECE = PIECE + sodium.crypto_secretstream_xchacha20poly1305_ABYTES


class KeyBox(Message):
    """The stream's key, sealed to one trainer."""

    node: NodeName
    box: Annotated[str, Field(pattern=r"^[0-9a-f]{160}$")]  # 32 bytes and a sealed box's 48


class StateIndex(Message):
    """The contents of a sealed state."""

    kind: Literal["state/1"] = "state/1"
    run: Digest
    step: Natural
    header: Annotated[str, Field(pattern=r"^[0-9a-f]{48}$")]  # of the stream
    keys: Annotated[tuple[KeyBox, ...], Field(min_length=1, max_length=8)]
    pieces: Annotated[tuple[Digest, ...], Field(min_length=1, max_length=100_000)]


def seal_state(
    source: Path, into: Path, *, run: str, step: int, trainers: Sequence[NodeId], piece: int = PIECE
) -> StateRef:
    """Encrypt a file to `into/{digest}` files, the index last, replacing the folder's contents. Returns the reference
    to it. Raises OSError; ValueError for an empty file, or one too long for an index."""
    shutil.rmtree(into, ignore_errors=True)
    make_folder(into)
    key, stream = sodium.crypto_secretstream_xchacha20poly1305_keygen(), StreamState()
    header = sodium.crypto_secretstream_xchacha20poly1305_init_push(stream, key)
    digests = [_write(into, data) for data in _encrypted(source, stream, run=run, step=step, piece=piece)]
    index = StateIndex(
        run=run,
        step=step,
        header=header.hex(),
        keys=tuple(KeyBox(node=node, box=seal_to(node, key).hex()) for node in trainers),
        pieces=tuple(digests),
    )
    data = encode(index)
    return StateRef(step=step, index=_write(into, data), size=len(data))


def read_index(data: bytes, *, run: str, step: int) -> StateIndex:
    """The index in a blob. Raises Malformed unless it belongs to this run and step."""
    index = decode(StateIndex, data)
    if (index.run, index.step) != (run, step):
        raise Malformed("the trainer state is of another run or step")
    return index


class StateOpener:
    """Decrypts pieces, in order, into a file. Raises Malformed at the first that does not belong."""

    def __init__(self, index: StateIndex, key: NodeKey) -> None:
        boxes = [item.box for item in index.keys if item.node == key.node]
        if not boxes:
            raise Malformed("the trainer state is not sealed to this node")
        self._index, self._number = index, 0
        self._stream = StreamState()
        sodium.crypto_secretstream_xchacha20poly1305_init_pull(
            self._stream, bytes.fromhex(index.header), key.open_sealed(bytes.fromhex(boxes[0]))
        )

    def open(self, data: bytes) -> bytes:
        """The plaintext of the next piece."""
        try:
            plain, tag = sodium.crypto_secretstream_xchacha20poly1305_pull(
                self._stream, data, _bound_to(self._index.run, self._index.step, self._number)
            )
        except (CryptoError, RuntimeError, ValueError, TypeError) as error:
            raise Malformed("a piece of the trainer state does not belong here") from error
        self._number += 1
        if (tag == FINAL) != (self._number == len(self._index.pieces)):
            raise Malformed("the trainer state is cut short")
        return bytes(plain)


def open_state(pieces: Iterable[bytes], target: Path, *, index: StateIndex, key: NodeKey) -> None:
    """Decrypt all pieces into `target`, atomically. Raises Malformed, OSError."""
    opener, temporary = StateOpener(index, key), target.with_name(f".{target.name}.tmp")
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        with temporary.open("wb") as file:
            for piece in pieces:
                file.write(opener.open(piece))
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(target)
    finally:
        with suppress(FileNotFoundError):
            temporary.unlink()


def _encrypted(source: Path, stream: StreamState, *, run: str, step: int, piece: int) -> Iterator[bytes]:
    with source.open("rb") as file:
        block, number = file.read(piece), 0
        if not block:
            raise ValueError(f"{source} is empty")
        while block:
            after = file.read(piece)
            yield sodium.crypto_secretstream_xchacha20poly1305_push(
                stream, block, _bound_to(run, step, number), MORE if after else FINAL
            )
            block, number = after, number + 1


def _bound_to(run: str, step: int, number: int) -> bytes:
    """The associated data that a piece is authenticated with."""
    return pack("intellect-node/trainer-state/1", run, step, number)


def _write(into: Path, data: bytes) -> str:
    digest = sha256(data)
    write_durably(into / digest, data)
    return digest
