"""Rebuilds a checkpoint's shards from a base and deltas. Each is verified against the
manifest's digest before it counts.

Used by clients, whose base is a folder, and by relays, whose base is stored in shards. Knows no network.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Generator, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

from dht.errors import Malformed
from roles.shardcast.delta import BaseFiles, Data, DeltaBase, decode_files
from roles.shardcast.shards import Layout
from roles.shardcast.sinks import Sink

HEADER_SLACK = 2**20
"""Bytes by which an intermediate checkpoint may exceed the wanted one: its files may have longer headers."""
OpenSink = Callable[[int], Sink | None]
"""Returns a sink for a shard; None when the shard is here already."""


class JoinedFiles:
    """Several files read as one: a delta whose shards are stored separately."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self._paths = list(reversed(paths))
        self._file: BinaryIO | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._file is not None:
            self._file.close()

    def read(self, length: int, /) -> bytes:
        """`length` bytes, fewer at the end. Raises OSError."""
        data = b""
        while len(data) < length and (self._file is not None or self._paths):
            if self._file is None:
                self._file = self._paths.pop().open("rb")
            block = self._file.read(length - len(data))
            if not block:
                self._file.close()
                self._file = None
            data += block
        return data

    def read_at(self, start: int, length: int, /) -> bytes:
        """`length` bytes from any position, fewer at the end; callable from any thread. Raises OSError."""
        data = b""
        for path in reversed(self._paths):
            size = path.stat().st_size
            if start < size and len(data) < length:
                with path.open("rb") as file:
                    data += os.pread(file.fileno(), length - len(data), start)
                start = size
            start -= size
        return data


class ShardBase:
    """A checkpoint stored in shards, as the base of a delta. `paths` are in shard order."""

    def __init__(self, layout: Layout, paths: Sequence[Path]) -> None:
        self._layout, self._paths = layout, paths
        self._sizes = {file.name: file.size for file in layout.manifest.files}
        self._starts: dict[str, int] = {}
        position = 0
        for file in layout.manifest.files:
            self._starts[file.name] = position
            position += file.size

    def size(self, name: str) -> int:
        """Bytes of a file; 0 when there is none."""
        return self._sizes.get(name, 0)

    def read(self, name: str, start: int, size: int) -> bytearray:
        """Part of a file, in a buffer that the caller owns. Raises OSError when a shard is no longer there."""
        data = bytearray(size)
        view, position = memoryview(data), self._starts[name] + start
        shard_size = self._layout.manifest.shard_size
        while view:
            index, offset = divmod(position, shard_size)
            wanted = min(len(view), shard_size - offset)
            with self._paths[index].open("rb") as file:
                if os.preadv(file.fileno(), [view[:wanted]], offset) != wanted:
                    raise OSError("a shard of the base is shorter than it was")
            view, position = view[wanted:], position + wanted
        return data


async def rebuild(layout: Layout, open_sink: OpenSink, *, base: BaseFiles, chain: Sequence[Sequence[Path]]) -> None:
    """Rebuild a checkpoint's shards in order. `chain`: for each delta, in the order to apply them, the files that make
    it up. Intermediate checkpoints are not written to disk.

    Shards that are done stay done. Raises Malformed or WrongBytes when base and deltas do not make the checkpoint,
    OSError when a file cannot be read, and a sink's own disk errors.
    """
    for paths in chain[:-1]:
        base = await asyncio.to_thread(DeltaBase, JoinedFiles(paths), base, max_bytes=layout.total + HEADER_SLACK)
    with JoinedFiles(chain[-1]) as source:
        stream = _Stream(decode_files(source, base, files=layout.manifest.files))
        try:
            for index in range(len(layout.manifest.shards)):
                async with open_sink(index) or nullcontext() as sink:
                    await stream.run(partial(stream.pour, sink, layout.size(index)))
            await stream.run(stream.end)
        finally:
            await asyncio.to_thread(stream.close)


class _Stream:
    """Blocks decoded in threads and passed on cut into shards. Blocking, except `run`."""

    def __init__(self, blocks: Generator[Data]) -> None:
        self._blocks, self._held, self._is_stopped = blocks, memoryview(b""), False

    async def run(self, work: Callable[[], None]) -> None:
        """Run `work` in a thread. When cancelled, it stops after the current block and is waited for."""
        future = asyncio.get_running_loop().run_in_executor(None, work)
        try:
            await asyncio.shield(future)
        except asyncio.CancelledError:
            self._is_stopped = True
            future.add_done_callback(lambda done: done.cancelled() or done.exception())
            await asyncio.wait([future])
            raise

    def pour(self, sink: Sink | None, left: int) -> None:
        """Write `left` bytes into the sink and commit it. Raises what the sink raises, Malformed."""
        while left:
            self._held = self._held or memoryview(next(self._blocks, b""))
            if not self._held or self._is_stopped:
                raise Malformed("a delta makes less than the checkpoint")
            part, self._held = self._held[:left], self._held[left:]
            left -= len(part)
            if sink is not None:
                sink.take(part)
        if sink is not None:
            sink.commit()

    def end(self) -> None:
        """Check that the delta ends here. Raises Malformed when it makes more than the checkpoint."""
        if next(self._blocks, b""):
            raise Malformed("a delta makes more than the checkpoint")

    def close(self) -> None:
        """Stop decoding."""
        self._blocks.close()
