"""Assembling a checkpoint: any order, kills, damage, two processes."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from roles.shardcast.assembly import Assembly, load_checkpoint_manifest, prune_checkpoints
from roles.shardcast.errors import StoreFull, WrongBytes
from roles.shardcast.manifest import manifest_digest
from roles.shardcast.shards import Layout, is_checkpoint_intact, read_shard
from tests.full_disk import no_file_larger
from tests.unit.roles.shardcast.network import RUN, TRAINER, make_checkpoint, make_envelope, make_manifest


def make_assembly(folder: Path, into: Path) -> Assembly:
    assembly = Assembly(into, make_envelope(folder), make_manifest(folder))
    assert assembly.open()
    return assembly


async def fill(assembly: Assembly, folder: Path, index: int) -> None:
    await write(assembly, index, b"".join(read_shard(folder, assembly.layout, index)))


async def write(assembly: Assembly, index: int, data: bytes) -> None:
    async with assembly.writer(index) as writer:
        writer.take(data)
        writer.commit()


def test_open__a_disk_without_the_room_says_so_before_a_byte_is_fetched_ckpt_12(tmp_path: Path) -> None:
    folder = make_checkpoint(tmp_path / "c", size=6_000_000)
    assembly = Assembly(tmp_path / "into", make_envelope(folder), make_manifest(folder))
    with no_file_larger(3_000_000), pytest.raises(StoreFull, match="cannot write a checkpoint under"):
        assembly.open()
    assert assembly.open()  # with room it goes on, and nobody holds its lock


@pytest.mark.parametrize("seed", range(3))
async def test_finish__shards_in_any_order(seed: int, tmp_path: Path) -> None:
    folder = make_checkpoint(tmp_path / "c")
    assembly = make_assembly(folder, tmp_path / "into")
    order = list(assembly.missing)
    random.Random(seed).shuffle(order)
    for index in order:
        await fill(assembly, folder, index)
    final = assembly.finish()
    assert final.name == assembly.digest
    assert is_checkpoint_intact(final, assembly.layout)
    assert [path.name for path in (tmp_path / "into").iterdir()] == [assembly.digest]


async def test_finish__refused_while_a_shard_is_missing_ckpt_10(tmp_path: Path) -> None:
    assembly = make_assembly(make_checkpoint(tmp_path / "c"), tmp_path / "into")
    with pytest.raises(ValueError, match="missing"):
        assembly.finish()
    assert not assembly.final.exists()
    assembly.close()


async def test_commit__reject_flipped_bit_wgt_04(tmp_path: Path) -> None:
    folder = make_checkpoint(tmp_path / "c")
    assembly = make_assembly(folder, tmp_path / "into")
    data = bytearray(b"".join(read_shard(folder, assembly.layout, 0)))
    data[100] ^= 1
    with pytest.raises(WrongBytes):
        await write(assembly, 0, bytes(data))
    assert 0 in assembly.missing
    await fill(assembly, folder, 0)
    assert 0 not in assembly.missing
    assembly.close()


async def test_commit__reject_short_and_long(tmp_path: Path) -> None:
    folder = make_checkpoint(tmp_path / "c")
    assembly = make_assembly(folder, tmp_path / "into")
    data = b"".join(read_shard(folder, assembly.layout, 0))
    for wrong in (data[:-1], data + b"x"):
        with pytest.raises(WrongBytes):
            await write(assembly, 0, wrong)
    assert 0 in assembly.missing
    assembly.close()


async def test_open__resumes_after_a_kill_wgt_08(tmp_path: Path) -> None:
    folder = make_checkpoint(tmp_path / "c")
    killed = make_assembly(folder, tmp_path / "into")
    await fill(killed, folder, 0)
    await fill(killed, folder, 3)
    killed.close()  # what the kernel does to a killed process's lock
    again = make_assembly(folder, tmp_path / "into")
    assert again.missing == {1, 2, 4}
    again.close()


async def test_open__damaged_and_unread_journal_lines_are_fetched_again(tmp_path: Path) -> None:
    folder = make_checkpoint(tmp_path / "c")
    killed = make_assembly(folder, tmp_path / "into")
    await fill(killed, folder, 0)
    await fill(killed, folder, 1)
    piece = next(killed.layout.pieces(1))
    with (killed.files / piece.name).open("r+b") as file:
        file.seek(piece.offset)
        file.write(b"\0" * 64)
    with (tmp_path / "into" / f".partial-{killed.digest}" / "journal").open("ab") as journal:
        journal.write(b"999\n-1\n\xff\xfe\n4")  # torn
    killed.close()
    again = make_assembly(folder, tmp_path / "into")
    assert again.missing == {1, 2, 3, 4}
    again.close()


def test_open__one_at_a_time_wgt_06(tmp_path: Path) -> None:
    folder = make_checkpoint(tmp_path / "c")
    first = make_assembly(folder, tmp_path / "into")
    second = Assembly(tmp_path / "into", make_envelope(folder), make_manifest(folder))
    assert not second.open()
    first.close()
    assert second.open()
    second.close()


async def test_load_checkpoint_manifest__none_once_a_byte_is_wrong_ckpt_02(tmp_path: Path) -> None:
    folder = make_checkpoint(tmp_path / "c")
    assembly = make_assembly(folder, tmp_path / "into")
    for index in tuple(assembly.missing):
        await fill(assembly, folder, index)
    final, trainers = assembly.finish(), frozenset([TRAINER.node])
    assert load_checkpoint_manifest(final, digest=assembly.digest, run=RUN, trainers=trainers) == make_manifest(folder)
    with (final / "model.safetensors").open("r+b") as file:
        file.write(b"?")
    assert load_checkpoint_manifest(final, digest=assembly.digest, run=RUN, trainers=trainers) is None


def test_prune_checkpoints__keeps_what_it_is_told(tmp_path: Path) -> None:
    kept, gone = "a" * 64, "b" * 64
    for name in (kept, gone, f".partial-{gone}", "notes", f".deltas/{gone}", f".deltas/{kept}"):
        (tmp_path / name).mkdir(parents=True)
    prune_checkpoints(tmp_path, keep=[kept])
    assert {path.name for path in tmp_path.iterdir()} == {kept, "notes", ".deltas"}
    assert [path.name for path in (tmp_path / ".deltas").iterdir()] == [kept]


@pytest.mark.parametrize("shard_size", [1024, 4096, 65_536, 2**20])
def test_pieces__cover_every_byte_once(shard_size: int, tmp_path: Path) -> None:
    folder = make_checkpoint(tmp_path / "c", size=70_001)
    layout = Layout(make_manifest(folder, shard_size=shard_size))
    whole = b"".join((folder / entry.name).read_bytes() for entry in layout.manifest.files)
    shards = [b"".join(read_shard(folder, layout, index)) for index in range(len(layout.manifest.shards))]
    assert b"".join(shards) == whole
    assert [len(shard) for shard in shards] == [layout.size(index) for index in range(len(shards))]
    assert manifest_digest(layout.manifest) == manifest_digest(make_manifest(folder, shard_size=shard_size))
