"""The store: complete blobs or none, across kills, damage and a full disk."""

from __future__ import annotations

import asyncio
import errno
import os
import resource
import stat
from pathlib import Path

import pytest

from dht.encoding import sha256
from roles.shardcast.disk import RESERVE
from roles.shardcast.errors import StoreFull, WrongBytes
from roles.shardcast.store import BlobStore

DATA = b"d" * 1000


class Time:
    """A clock to be moved."""

    def __init__(self) -> None:
        self.now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


async def write(store: BlobStore, digest: str, data: bytes) -> None:
    async with store.begin(digest, len(data)) as writer:
        writer.take(data)
        writer.commit()


async def read(store: BlobStore, digest: str) -> bytes | None:
    reader = await store.open(digest)
    if reader is None:
        return None
    try:
        return b"".join([block async for block in reader.blocks(0, reader.size)])
    finally:
        reader.close()


async def test_put__read_back_by_a_new_store(tmp_path: Path) -> None:
    digest = await BlobStore(tmp_path, max_disk=10_000).put(DATA)
    again = BlobStore(tmp_path, max_disk=10_000)
    assert await read(again, digest) == DATA
    assert again.used == len(DATA)


async def test_commit__a_name_that_does_not_reach_the_disk_leaves_no_bytes_uncounted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = BlobStore(tmp_path, max_disk=10_000)
    store.discard(await store.put(DATA))  # its folder is there
    monkeypatch.setattr(os, "fsync", fails_for_folders)
    with pytest.raises(StoreFull, match="Input/output error"):
        await store.put(DATA)
    assert store.used == bytes_under(tmp_path)


def bytes_under(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def fails_for_folders(descriptor: int) -> None:
    if stat.S_ISDIR(os.fstat(descriptor).st_mode):
        raise OSError(errno.EIO, os.strerror(errno.EIO))


async def test_open__what_is_there_and_cannot_be_deleted_is_not_here_and_stays_counted(tmp_path: Path) -> None:
    store = BlobStore(tmp_path, max_disk=10_000)
    digest = await store.put(DATA)
    (path,) = (tmp_path / "blobs").rglob(digest)
    path.unlink()
    path.mkdir()
    assert await read(store, digest) is None
    assert (digest in store, store.used) == (False, len(DATA))


async def test_begin__what_came_while_the_clock_was_ahead_goes_like_all_else(tmp_path: Path) -> None:
    time = Time()
    store = BlobStore(tmp_path, max_disk=1500, retention=60.0, clock=time)
    time.now += 365 * 86_400
    await store.put(DATA)
    time.now -= 365 * 86_400
    with pytest.raises(StoreFull):
        await store.put(b"n" * 1000)
    time.now += 61
    assert await store.put(b"n" * 1000) in store


async def test_wait_for__of_one_that_comes_among_thousands_that_never_do(tmp_path: Path) -> None:
    store = BlobStore(tmp_path, max_disk=10_000)
    never = [store.wait_for(sha256(str(number).encode()), 30.0) for number in range(5_000)]
    async with asyncio.timeout(20), asyncio.TaskGroup() as group:
        waiting = [group.create_task(one) for one in never]
        wanted = group.create_task(store.wait_for(sha256(DATA), 30.0))
        await asyncio.sleep(0)
        await store.put(b"another")
        await store.put(DATA)
        assert await wanted
        for task in waiting:
            task.cancel()


async def test_open__damaged_blob_never_served_wgt_01(tmp_path: Path) -> None:
    digest = await BlobStore(tmp_path, max_disk=10_000).put(DATA)
    (tmp_path / "blobs" / digest[:2] / digest).write_bytes(b"e" * 1000)
    again = BlobStore(tmp_path, max_disk=10_000)
    assert await read(again, digest) is None
    assert digest not in again
    assert again.used == 0


async def test_open__without_a_free_descriptor_the_blob_is_kept(tmp_path: Path) -> None:
    store = BlobStore(tmp_path, max_disk=10_000)
    digest = await store.put(DATA)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (1, hard))
    try:
        assert await store.open(digest) is None
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert await read(store, digest) == DATA


async def test_commit__wrong_digest_leaves_nothing(tmp_path: Path) -> None:
    store = BlobStore(tmp_path, max_disk=10_000)
    with pytest.raises(WrongBytes):
        await write(store, sha256(b"other"), DATA)
    assert len(store) == store.used == 0
    assert list((tmp_path / "tmp").iterdir()) == []


async def test_begin__half_written_blob_gone_after_a_kill_wgt_07(tmp_path: Path) -> None:
    store = BlobStore(tmp_path, max_disk=2**24)
    writer = store.begin(sha256(b"x" * 2**21), 2**21)
    writer.take(b"x" * 2**20)
    again = BlobStore(tmp_path, max_disk=2**24)  # the process was killed here
    assert len(again) == 0
    assert list((tmp_path / "tmp").iterdir()) == []
    await writer.__aexit__(None, None, None)


async def test_begin__evicts_least_used_of_the_old_only_ckpt_12(tmp_path: Path) -> None:
    time = Time()
    store = BlobStore(tmp_path, max_disk=3000, retention=100, clock=time)
    first, second = await store.put(b"1" * 1000), await store.put(b"2" * 1000)
    time.now += 101
    third = await store.put(b"3" * 1000)
    assert await read(store, first) is not None  # so the second is the least used
    fourth = await store.put(b"4" * 1000)
    assert second not in store
    assert {first, third, fourth} <= set(store._entries)


async def test_begin__refused_while_all_is_young_pinned_or_wanted(tmp_path: Path) -> None:
    time, wanted = Time(), sha256(b"2" * 1000)
    store = BlobStore(tmp_path, max_disk=3000, retention=100, clock=time, is_wanted=lambda digest: digest == wanted)
    await store.put(b"1" * 1000, pin=True)
    await store.put(b"2" * 1000)
    time.now += 101
    young = await store.put(b"3" * 1000)
    with pytest.raises(StoreFull):
        await store.put(b"4" * 1000)
    assert len(store) == 3
    assert young in store


async def test_begin__rooms_under_way_are_counted(tmp_path: Path) -> None:
    store = BlobStore(tmp_path, max_disk=1500)
    async with store.begin(sha256(DATA), 1000):
        with pytest.raises(StoreFull):
            store.begin(sha256(b"other"), 1000)
    store.begin(sha256(b"other"), 1000)


async def test_begin__disk_full_is_a_clean_refusal(tmp_path: Path) -> None:
    store = BlobStore(tmp_path, max_disk=10_000, free_space=lambda path: RESERVE + 10)
    with pytest.raises(StoreFull, match="no room"):
        await store.put(DATA)


async def test_write__error_of_the_disk_is_a_clean_refusal(tmp_path: Path) -> None:
    store = BlobStore(tmp_path, max_disk=10_000)
    (tmp_path / "tmp").rmdir()
    with pytest.raises(StoreFull, match="the disk took no more"):
        await store.put(DATA)
    assert store.used == store._reserved == 0


async def test_open__reader_outlives_eviction_wgt_15(tmp_path: Path) -> None:
    store = BlobStore(tmp_path, max_disk=10_000)
    digest = await store.put(DATA)
    reader = await store.open(digest)
    assert reader is not None
    store.discard(digest)
    assert digest not in store
    assert b"".join([block async for block in reader.blocks(10, 20)]) == DATA[10:30]
    reader.close()
