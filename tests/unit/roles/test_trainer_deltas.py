"""The trainer's deltas: made once, kept, and remade when they are no longer useful."""

from __future__ import annotations

from pathlib import Path

import pytest
import structlog
import torch
from safetensors.torch import save_file

from dht.identity import NodeKey
from roles.shardcast.delta import apply_delta
from roles.shardcast.manifest import build_manifest, check_delta, manifest_digest, seal_manifest
from roles.spec import BroadcastSpec, RunSpec
from roles.trainer.deltas import Deltas
from roles.trainer.journal import Journal
from tests.builders import STRANGER, TRAINER, make_spec

SPEC = make_spec()
ZERO = "0" * 64


def make_journal(root: Path, *, steps: int = 3, step_size: float = 1e-6) -> Journal:
    """Checkpoints one step after another, sealed."""
    journal, weights = Journal(root), torch.randn(40_000, generator=torch.Generator().manual_seed(0)) * 0.05
    for step in range(steps):
        journal.checkpoint(step).mkdir()
        save_file({"w": weights.to(torch.bfloat16)}, journal.checkpoint(step) / "model.safetensors")
        seal(journal, step)
        weights = weights + step_size * torch.randn(len(weights), generator=torch.Generator().manual_seed(step))
    return journal


def seal(journal: Journal, step: int, *, term: int = 1) -> None:
    manifest = build_manifest(
        journal.checkpoint(step), run=SPEC.run_id, term=term, step=step, parent=ZERO, shard_size=65_536
    )
    journal.save_manifest(step, seal_manifest(TRAINER, manifest))


def make_deltas(journal: Journal, root: Path, *, spec: RunSpec = SPEC, key: NodeKey = TRAINER) -> Deltas:
    return Deltas(spec, term=1, key=key, journal=journal, folder=root / "deltas", clock=lambda: 1000)


def digest_of(journal: Journal, step: int) -> str:
    row = journal.manifest(step)
    assert row is not None
    return manifest_digest(row)


def test_make__turns_the_parent_into_the_checkpoint(tmp_path: Path) -> None:
    journal = make_journal(tmp_path)
    made = make_deltas(journal, tmp_path).make(2)
    assert made is not None
    row = check_delta(made[0], run=SPEC.run_id, trainers={TRAINER.node})
    assert (row.base, row.target, row.step) == (digest_of(journal, 1), digest_of(journal, 2), 2)
    assert row.size == (made[1] / "delta").stat().st_size
    apply_delta(journal.checkpoint(1), made[1] / "delta", tmp_path / "into")
    rebuilt, there = (folder / "model.safetensors" for folder in (tmp_path / "into", journal.checkpoint(2)))
    assert rebuilt.read_bytes() == there.read_bytes()


def test_make__after_a_restart_the_same_row(tmp_path: Path) -> None:
    journal = make_journal(tmp_path)
    made = make_deltas(journal, tmp_path).make(1)
    assert make_deltas(journal, tmp_path).make(1) == made


@pytest.mark.parametrize("left", ["damaged", "missing", "of another checkpoint", "of another trainer"])
def test_make__anew_when_what_is_there_is_of_no_use(tmp_path: Path, left: str) -> None:
    journal = make_journal(tmp_path)
    deltas = make_deltas(journal, tmp_path, key=STRANGER if left == "of another trainer" else TRAINER)
    first = deltas.make(1)
    assert first is not None
    if left == "damaged":
        (first[1] / "row").write_bytes(b"?")
    if left == "missing":
        (first[1] / "row").unlink()
    if left == "of another checkpoint":
        seal(journal, 1, term=2)
    (first[1] / "delta").write_bytes(b"left over")
    again = make_deltas(journal, tmp_path).make(1)
    assert again is not None
    row = check_delta(again[0], run=SPEC.run_id, trainers={TRAINER.node})
    assert row.target == digest_of(journal, 1)
    assert (again[1] / "delta").stat().st_size == row.size


def test_make__none_when_the_whole_is_the_shorter_way__wgt_22(tmp_path: Path) -> None:
    journal = make_journal(tmp_path, step_size=1.0)
    with structlog.testing.capture_logs() as log:
        assert make_deltas(journal, tmp_path).make(1) is None
    assert [entry["event"] for entry in log] == ["delta.skipped"]
    assert not list((tmp_path / "deltas").iterdir())


def test_make__none_without_a_parent(tmp_path: Path) -> None:
    deltas = make_deltas(make_journal(tmp_path, steps=1), tmp_path)
    assert deltas.make(0) is None
    assert deltas.make(1) is None


def test_make__none_when_the_run_wants_none(tmp_path: Path) -> None:
    spec = make_spec(broadcast=BroadcastSpec(delta=False))
    deltas = make_deltas(make_journal(tmp_path), tmp_path, spec=spec)
    assert deltas.make(1) is None
    assert deltas.is_anchor(1)


def test_is_anchor__every_so_many_steps(tmp_path: Path) -> None:
    spec = make_spec(broadcast=BroadcastSpec(anchor_every=3))
    deltas = make_deltas(make_journal(tmp_path), tmp_path, spec=spec)
    assert [step for step in range(8) if deltas.is_anchor(step)] == [0, 3, 6]


def test_prune__keeps_the_newest_five(tmp_path: Path) -> None:
    deltas = make_deltas(make_journal(tmp_path, steps=9), tmp_path)
    assert all(deltas.make(step) for step in range(1, 9))
    deltas.prune()
    assert sorted(path.name for path in (tmp_path / "deltas").iterdir()) == ["4", "5", "6", "7", "8"]
