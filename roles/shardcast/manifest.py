"""Builds, signs and checks a `CheckpointManifest`, which lists a checkpoint's contents, and a `CheckpointDelta`, which
is a shorter way to it. Knows no network.

The files, sorted by name, are concatenated and cut into shards. `weights` is SHA-256 over the ordered raw shard
digests, so the pass that digests the shards also digests the whole.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Collection, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from dht.encoding import encode
from dht.envelope import Envelope, body_digest, seal
from dht.errors import Malformed, PeerError
from dht.identity import NodeId, NodeKey
from roles.messages import (
    ROW_RULES,
    CheckpointDelta,
    CheckpointManifest,
    FileEntry,
    open_row,
    place_of,
    subkey_for,
)

MANIFEST_KIND = "manifest/2"
DELTA_KIND = "delta/1"
Sharded = CheckpointManifest | CheckpointDelta
"""Anything that is cut into shards and identified by the digest of its signed row."""
MAX_MANIFEST_BYTES = ROW_RULES[MANIFEST_KIND].max_bytes
MAX_CHECKPOINT_BYTES = 2**41
"""2 TiB: one trillion parameters in bfloat16."""
SMALLEST_SHARD = 64 * 1024
LARGEST_SHARD = 50_000_000
"""SHARDCAST's own shard size (INTELLECT-2, section 3.2)."""
SHARDS_WANTED = 64
READ_BLOCK = 2**20
HASHERS, HASH_BLOCK = 4, 2**18


def build_manifest(
    directory: Path, *, run: str, term: int, step: int, parent: str, shard_size: int
) -> CheckpointManifest:
    """Digest a directory's files (not hidden ones, not sub-directories), streamed, in one pass.

    `shard_size` is in bytes. Raises ValueError when the directory holds no bytes, a name the protocol does not allow,
    or too many shards; OSError when a file cannot be read.
    """
    paths = sorted(path for path in directory.iterdir() if path.is_file() and not path.name.startswith("."))
    files = tuple(FileEntry(name=path.name, size=path.stat().st_size) for path in paths)
    shards = tuple(_shard_digests(paths, shard_size))
    if sum(file.size for file in files) == 0:
        raise ValueError(f"{directory} holds no checkpoint: no file with a byte in it")
    weights = compute_weights_digest(shards)
    return CheckpointManifest(
        run=run, term=term, step=step, parent=parent, weights=weights, files=files, shard_size=shard_size, shards=shards
    )


def build_delta(
    file: Path, *, run: str, term: int, step: int, target: str, base: str, shard_size: int
) -> CheckpointDelta:
    """Digest a delta's file. `target` and `base` are manifest digests, `step` the target's. Raises OSError."""
    shards, size = tuple(_shard_digests([file], shard_size)), file.stat().st_size
    return CheckpointDelta(
        run=run, term=term, step=step, target=target, base=base, size=size, shard_size=shard_size, shards=shards
    )


def choose_shard_size(total: int, *, shards: int = SHARDS_WANTED) -> int:
    """Shard size in bytes: small enough that hops overlap, large enough that each is worth a request."""
    return min(LARGEST_SHARD, max(SMALLEST_SHARD, -(-total // shards)))


def compute_weights_digest(shards: Iterable[str]) -> str:
    """SHA-256 over the concatenated raw shard digests: the identity of the weights, whichever step carries them."""
    whole = hashlib.sha256()
    for shard in shards:
        whole.update(bytes.fromhex(shard))
    return whole.hexdigest()


def seal_manifest(key: NodeKey, manifest: Sharded, *, now_ms: int | None = None) -> Envelope:
    """Sign a manifest, or a delta, as the trainer. It is valid for ten years: weights do not go stale, heads do."""
    issued = int(time.time() * 1000) if now_ms is None else now_ms
    record_key, _ = place_of(manifest, run=manifest.run, buckets=1)
    return seal(
        key,
        run=manifest.run,
        kind=manifest.kind,
        record_key=record_key,
        subkey=subkey_for(manifest, run=manifest.run, signer=key.node, buckets=1),
        sequence=issued,
        expiration=issued + ROW_RULES[manifest.kind].lifetime * 1000,
        payload=encode(manifest),
    )


def manifest_digest(row: Envelope | Sharded) -> str:
    """The one identity of a manifest or a delta: the digest of its canonical body, whoever carries it and however often
    it is signed. An envelope of another kind never has a manifest's digest."""
    if isinstance(row, Envelope):
        return body_digest(row.run, row.kind, row.payload)
    return body_digest(row.run, row.kind, encode(row))


def check_manifest(envelope: Envelope, *, run: str, trainers: Collection[NodeId]) -> CheckpointManifest:
    """Check a verified envelope. Raises PeerError when its signer is not a trainer of the run,
    Malformed for other faults.

    The signer is checked first, so that up to 8 MiB of JSON are parsed for trainers only.
    """
    if envelope.signer not in trainers:
        raise PeerError("manifest is not signed by a trainer of this run")  # WGT-05
    manifest = open_row(envelope, run=run, buckets=1)
    if not isinstance(manifest, CheckpointManifest):
        raise Malformed("row is not a manifest")
    total = total_bytes(manifest)
    if not 0 < total <= MAX_CHECKPOINT_BYTES:
        raise Malformed(f"checkpoint of {total} bytes is empty or over the bound of {MAX_CHECKPOINT_BYTES}")
    if len(manifest.shards) != -(-total // manifest.shard_size):
        raise Malformed("count of shards does not fit the sizes of the files")
    if len({file.name.casefold() for file in manifest.files}) != len(manifest.files):
        raise Malformed("two files of the checkpoint share a name")  # ignoring case, as some file systems do
    if compute_weights_digest(manifest.shards) != manifest.weights:
        raise Malformed("weights digest does not match the shards")
    return manifest


def check_delta(envelope: Envelope, *, run: str, trainers: Collection[NodeId]) -> CheckpointDelta:
    """Check a verified envelope. Raises PeerError when its signer is not a trainer of the run,
    Malformed for other faults."""
    if envelope.signer not in trainers:
        raise PeerError("delta is not signed by a trainer of this run")
    delta = open_row(envelope, run=run, buckets=1)
    if not isinstance(delta, CheckpointDelta):
        raise Malformed("row is not a delta")
    if delta.size > MAX_CHECKPOINT_BYTES:
        raise Malformed(f"delta of {delta.size} bytes is over the bound of {MAX_CHECKPOINT_BYTES}")
    if len(delta.shards) != -(-delta.size // delta.shard_size):
        raise Malformed("count of shards does not fit the delta's size")
    if delta.base == delta.target:
        raise Malformed("a delta leads from a checkpoint to itself")
    return delta


def total_bytes(manifest: Sharded) -> int:
    """Total bytes of all files."""
    return sum(file.size for file in manifest.files)


def _shard_digests(paths: Iterable[Path], shard_size: int) -> Iterator[str]:
    """SHA-256 of each shard, in order; computed in threads, since hashing releases the interpreter's lock."""
    with ThreadPoolExecutor(min(HASHERS, os.cpu_count() or 1)) as threads:
        yield from threads.map(_digest_of, _spans(paths, shard_size))


def _spans(paths: Iterable[Path], shard_size: int) -> Iterator[list[tuple[Path, int, int]]]:
    """For each shard, the byte ranges that make it up: file, offset, length."""
    span, room = list[tuple[Path, int, int]](), shard_size
    for path in paths:
        size, offset = path.stat().st_size, 0
        while offset < size:
            take = min(room, size - offset)
            span.append((path, offset, take))
            offset, room = offset + take, room - take
            if not room:
                yield span
                span, room = [], shard_size
    if span:
        yield span


def _digest_of(span: list[tuple[Path, int, int]]) -> str:
    digest, buffer = hashlib.sha256(), memoryview(bytearray(HASH_BLOCK))
    for path, offset, left in span:
        with path.open("rb", buffering=0) as file:
            file.seek(offset)
            while left:
                got = file.readinto(buffer[: min(left, HASH_BLOCK)])
                if not got:
                    raise OSError(f"{path.name} became shorter while it was digested")
                digest.update(buffer[:got])
                left -= got
    return digest.hexdigest()
