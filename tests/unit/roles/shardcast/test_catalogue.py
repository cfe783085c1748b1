"""Which checkpoints a relay keeps."""

from __future__ import annotations

from pathlib import Path

import pytest

from dht.identity import NodeKey
from roles.shardcast.catalogue import Catalogue
from roles.shardcast.errors import StaleCheckpoint, StoreFull
from roles.shardcast.shelf import Shelf
from tests.unit.roles.shardcast.line import Line, make_line
from tests.unit.roles.shardcast.network import RUN, TRAINER, make_checkpoint, make_envelope

OTHER = NodeKey(b"o" * 32)


def make_catalogue(root: Path) -> Catalogue:
    return Catalogue(root, run=RUN, trainers=[TRAINER.node, OTHER.node])


async def add(catalogue: Catalogue, folder: Path, *, step: int, key: NodeKey = TRAINER) -> list[str]:
    made = make_checkpoint(folder / f"{step}", size=5000, seed=step)
    return await catalogue.add(catalogue.check(make_envelope(made, step=step, key=key, shard_size=1024)))


def steps(catalogue: Catalogue) -> list[int]:
    return [kept.manifest.step for kept in catalogue]


async def test_add__newest_five_kept_and_found_after_a_restart(tmp_path: Path) -> None:
    catalogue = make_catalogue(tmp_path / "r")
    orphans = [await add(catalogue, tmp_path, step=step) for step in range(1, 7)]
    assert steps(catalogue) == [6, 5, 4, 3, 2]
    assert [len(shards) for shards in orphans] == [0, 0, 0, 0, 0, 5]
    assert not any(catalogue.lists(shard) for shard in orphans[-1])
    assert steps(make_catalogue(tmp_path / "r")) == [6, 5, 4, 3, 2]


async def add_delta(catalogue: Catalogue, line: Line, step: int, *, size: int) -> None:
    await catalogue.add(catalogue.check(line.delta(step, file=bytes(size))[0]))


@pytest.mark.parametrize(("size", "left"), [(100, 7), (60_000, 5)])
async def test_add__deltas_outlive_their_checkpoints_while_a_chain_is_shorter(
    tmp_path: Path, size: int, left: int
) -> None:
    catalogue, line = make_catalogue(tmp_path / "r"), make_line(tmp_path / "line", steps=8)
    for step in range(8):
        if step:
            await add_delta(catalogue, line, step, size=size)
        await catalogue.add(catalogue.check(line.rows[step]))
    assert steps(catalogue) == [7, 6, 5, 4, 3]
    assert [delta.delta.step for delta in catalogue.deltas()] == list(range(7, 7 - left, -1))
    assert len(catalogue.leading_on(line.digest(0))) == (7 if left == 7 else 0)
    assert len(catalogue.leading_on(line.digest(5))) == 2
    assert len(make_catalogue(tmp_path / "r").deltas()) == left


async def test_check__reject_older_than_those_kept(tmp_path: Path) -> None:
    catalogue = make_catalogue(tmp_path / "r")
    for step in range(5, 10):
        await add(catalogue, tmp_path, step=step)
    with pytest.raises(StaleCheckpoint):
        await add(catalogue, tmp_path, step=4)
    assert steps(catalogue) == [9, 8, 7, 6, 5]


async def test_add__one_trainer_cannot_push_out_another(tmp_path: Path) -> None:
    catalogue = make_catalogue(tmp_path / "r")
    await add(catalogue, tmp_path, step=1)
    for step in range(1000, 1006):
        await add(catalogue, tmp_path, step=step, key=OTHER)
    assert 1 in steps(catalogue)


async def test_add__shard_shared_by_two_stays_until_both_go(tmp_path: Path) -> None:
    catalogue = make_catalogue(tmp_path / "r")
    folder = make_checkpoint(tmp_path / "same", size=5000)
    first, second = (catalogue.check(make_envelope(folder, step=step, shard_size=1024)) for step in (1, 2))
    await catalogue.add(first)
    await catalogue.add(second)
    assert catalogue.drop(first.digest) == []
    assert set(catalogue.drop(second.digest)) == set(second.layout.manifest.shards)


async def test_init__damaged_file_set_aside_ckpt_04(tmp_path: Path) -> None:
    catalogue = make_catalogue(tmp_path / "r")
    await add(catalogue, tmp_path, step=1)
    path = next((tmp_path / "r" / "manifests").iterdir())
    *whole, last = path.read_bytes()
    path.write_bytes(bytes([*whole, last ^ 1]))
    assert len(make_catalogue(tmp_path / "r")) == 0
    assert len(make_catalogue(tmp_path / "r")) == 0  # and it does not come back


async def test_begin__old_checkpoints_make_room_but_two_stay(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path / "r", run=RUN, trainers=[TRAINER.node], max_disk=15_000)
    kept = []
    for step in (1, 2, 3):
        folder = make_checkpoint(tmp_path / f"{step}", size=5000, seed=step)
        kept.append(shelf.catalogue.check(make_envelope(folder, step=step, shard_size=8192)))
        await shelf.add(kept[-1])
        await shelf.store.put(b"".join(sorted_bytes(folder)))
    assert [shelf.held(one) for one in kept] == [1, 1, 1]
    shelf.begin("e" * 64, 5000, is_shard=True)
    assert steps(shelf.catalogue) == [3, 2]
    with pytest.raises(StoreFull):
        shelf.begin("f" * 64, 5000, is_shard=True)
    assert steps(shelf.catalogue) == [3, 2]


def sorted_bytes(folder: Path) -> list[bytes]:
    return [path.read_bytes() for path in sorted(folder.iterdir())]
