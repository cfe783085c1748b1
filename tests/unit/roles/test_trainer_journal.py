"""What a trainer has on disk survives a kill at any moment."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from roles.messages import SHARE_ALL, OpenStep, StateRef
from roles.rl.batch import TrainingGroup
from roles.spec import ModelSpec, PinnedFile
from roles.trainer.closing import ClosedBatch, PooledGroup
from roles.trainer.errors import BaseMismatch, StateMissing
from roles.trainer.journal import Journal
from roles.trainer.stepping import used_groups
from tests.builders import POLICY, make_head, make_spec


def make_batch(step: int = 1) -> ClosedBatch:
    training = TrainingGroup((1, 2), ((3, 4), (5,)), (0.0, 1.0), policy_step=0, submission="ab" * 32)
    return ClosedBatch(step, (PooledGroup("ab" * 32, 2, training),), "full", 0, 0.5)


def test_batch__comes_back_as_it_was(tmp_path: Path) -> None:
    Journal(tmp_path).save_batch(make_batch())
    assert Journal(tmp_path).batch(1) == make_batch()
    assert Journal(tmp_path).batch(2) is None


@pytest.mark.parametrize(
    ("name", "read"),
    [
        ("batches/1.json", lambda journal: journal.batch(1)),
        ("head.json", Journal.head),
        ("manifests/1.row", lambda journal: journal.manifest(1)),
        ("sealed/newest.json", Journal.state_ref),
    ],
)
def test_read__damaged_file_is_named(tmp_path: Path, name: str, read: Callable[[Journal], object]) -> None:
    journal = Journal(tmp_path)
    assert read(journal) is None
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text('{"step": 1')
    with pytest.raises(StateMissing, match=name):
        read(journal)


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


@pytest.mark.parametrize("made_by", ["copy_base", "adopt"])
def test_checkpoint__on_the_disk_before_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, made_by: str) -> None:
    """What a stand-by fetched or copied may still be only in memory; the learner's state then says that it exists."""
    synced: list[Path] = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: synced.append(Path(os.readlink(f"/proc/self/fd/{descriptor}"))))
    journal = Journal(tmp_path)
    if made_by == "adopt":
        journal.adopt(0, POLICY)
    else:
        journal.copy_base(POLICY, make_spec().model)
    names = {path.name for path in journal.checkpoint(0).iterdir()}
    temporary = {path for path in synced if path.parent.parent == tmp_path / "checkpoints"}
    assert {path.name for path in temporary} == names
    assert {path.parent for path in temporary} <= set(synced)
    assert synced[-1] == tmp_path / "checkpoints"


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


def test_forget_after__a_fork_goes_with_the_state_that_made_it(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    for step in (1, 2, 3):
        journal.save_batch(make_batch(step))
        journal.checkpoint(step).mkdir()
    journal.learner.mkdir()
    (journal.learner / "state.safetensors").write_bytes(b"of step 3")
    journal.forget_after(2)
    assert [batch.step for batch in journal.batches()] == [1]
    assert [journal.checkpoint(step).exists() for step in (1, 2, 3)] == [True, True, False]
    assert not any(journal.learner.iterdir())


def test_adopt__takes_the_files_and_nothing_hidden(tmp_path: Path) -> None:
    journal, fetched = Journal(tmp_path / "own"), tmp_path / "fetched"
    fetched.mkdir()
    (fetched / "model.safetensors").write_bytes(b"weights")
    (fetched / ".manifest").write_bytes(b"row")
    journal.checkpoint(4).mkdir()
    (journal.checkpoint(4) / "left-over").touch()
    journal.adopt(4, fetched)
    assert [path.name for path in journal.checkpoint(4).iterdir()] == ["model.safetensors"]
    assert (fetched / "model.safetensors").read_bytes() == b"weights"


def test_state_ref__comes_back_and_older_pieces_go(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    assert journal.state_ref() is None
    ref = StateRef(step=10, index="ab" * 32, size=100)
    journal.save_state_ref(ref)
    for step in (5, 10):
        journal.sealed(step).mkdir()
    journal.forget_sealed_before(10)
    assert Journal(tmp_path).state_ref() == ref
    assert (journal.sealed(5).exists(), journal.sealed(10).exists()) == (False, True)
    journal.save_state_ref(None)
    assert journal.state_ref() is None


def test_used_groups__by_submission_in_the_order_of_the_batch() -> None:
    first, second = make_batch().groups[0], replace(make_batch().groups[0], submission="cd" * 32, number=0)
    batch = replace(make_batch(), groups=(first, second, replace(first, number=0)))
    found = used_groups(batch)
    assert [(item.submission, item.groups) for item in found] == [("ab" * 32, (2, 0)), ("cd" * 32, (0,))]
    assert used_groups(None) == ()
