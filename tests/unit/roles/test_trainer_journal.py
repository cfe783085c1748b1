"""What a trainer has on disk survives a kill at any moment."""

from __future__ import annotations

from pathlib import Path

import pytest

from roles.messages import SHARE_ALL, OpenStep
from roles.rl.batch import TrainingGroup
from roles.spec import ModelSpec, PinnedFile
from roles.trainer.closing import ClosedBatch, PooledGroup
from roles.trainer.errors import BaseMismatch, StateMissing
from roles.trainer.journal import Journal
from roles.trainer.stepping import choose_shard_size
from tests.builders import POLICY, make_head, make_spec


def make_batch(step: int = 1) -> ClosedBatch:
    training = TrainingGroup((1, 2), ((3, 4), (5,)), (0.0, 1.0), policy_step=0, submission="ab" * 32)
    return ClosedBatch(step, (PooledGroup("ab" * 32, 2, training),), "full", 0, 0.5)


def test_batch__comes_back_as_it_was(tmp_path: Path) -> None:
    Journal(tmp_path).save_batch(make_batch())
    assert Journal(tmp_path).batch(1) == make_batch()
    assert Journal(tmp_path).batch(2) is None


def test_batch__damaged_file_is_named(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    journal.save_batch(make_batch())
    (tmp_path / "batches/1.json").write_text('{"step": 1')
    with pytest.raises(StateMissing, match=r"batches/1\.json"):
        journal.batch(1)


def test_head__comes_back_as_it_was(tmp_path: Path) -> None:
    head = make_head(3, open_steps=(OpenStep(step=3, limit=7, share=SHARE_ALL),))
    assert Journal(tmp_path).head() is None
    Journal(tmp_path).save_head(head)
    assert Journal(tmp_path).head() == head


def test_copy_base__exactly_the_pinned_files(tmp_path: Path) -> None:
    base = tmp_path / "base"
    base.mkdir()
    for path in POLICY.iterdir():
        (base / path.name).write_bytes(path.read_bytes())
    (base / "notes.txt").write_text("not part of the model")
    journal = Journal(tmp_path / "state")
    journal.copy_base(base, make_spec().model)
    names = {path.name for path in journal.checkpoint(0).iterdir()}
    assert names == {file.name for file in make_spec().model.files}


@pytest.mark.parametrize("change", [{"sha256": "00" * 32}, {"size": 1}, {"name": "missing.json"}])
def test_copy_base__another_file_than_the_spec_pins(tmp_path: Path, change: dict[str, str | int]) -> None:
    first = make_spec().model.files[0]
    pinned = PinnedFile.model_validate({**first.model_dump(), **change})
    journal = Journal(tmp_path)
    with pytest.raises(BaseMismatch, match=pinned.name):
        journal.copy_base(POLICY, ModelSpec(name="m", files=(pinned,)))
    assert not journal.checkpoint(0).exists()


def test_prune__newest_five_and_all_uncommitted_ones(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    for step in range(10):
        journal.checkpoint(step).mkdir()
        journal.save_batch(make_batch(step))
    journal.prune(committed=7, used_from=6)
    assert sorted(int(path.name) for path in (tmp_path / "checkpoints").iterdir()) == [3, 4, 5, 6, 7, 8, 9]
    assert [batch.step for batch in journal.batches()] == [6, 7, 8, 9]


def test_prune__leaves_what_is_being_written(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    (tmp_path / "checkpoints/.8.tmp").mkdir()
    journal.prune(committed=7, used_from=6)
    assert (tmp_path / "checkpoints/.8.tmp").exists()


def test_journal__half_written_checkpoints_of_a_kill_go__ckpt_04(tmp_path: Path) -> None:  # CKPT-04
    Journal(tmp_path)
    (tmp_path / "checkpoints/.8.tmp").mkdir()
    Journal(tmp_path)
    assert not (tmp_path / "checkpoints/.8.tmp").exists()


@pytest.mark.parametrize(("total", "size"), [(1000, 65_536), (64 * 2**20, 2 * 2**20), (65 * 10**9, 50_000_000)])
def test_choose_shard_size__overlapping_hops_and_no_crumbs(total: int, size: int) -> None:
    assert choose_shard_size(total) == size
