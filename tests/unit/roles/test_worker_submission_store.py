"""A worker's own submissions on disk: what may have been published is never made again."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dht.encoding import sha256
from roles.worker.generation import Made, submission_digest
from roles.worker.submission_store import SubmissionStore
from tests.builders import make_submission, make_world

WORLD = make_world()


def make_made(step: int = 1, index: int = 0, blob: bytes = b"rollouts") -> Made:
    submission = make_submission(WORLD, step=step, index=index, blob=sha256(blob), size=len(blob))
    return Made(submission, submission_digest(submission), blob, 0.5)


def test_load__in_order_with_relays_once_uploaded(tmp_path: Path) -> None:
    store = SubmissionStore(tmp_path)
    for index in (1, 0):
        store.save(make_made(index=index))
    store.mark_uploaded(make_made(index=0).submission, ("relay",))
    kept = SubmissionStore(tmp_path).load()
    assert [(item.submission.index, item.relays) for item in kept] == [(0, ("relay",)), (1, None)]
    assert [item.digest for item in kept] == [make_made(index=i).digest for i in (0, 1)]


def test_load__blob_without_its_submission_is_as_if_never_made(tmp_path: Path) -> None:
    store = SubmissionStore(tmp_path)
    store.save(make_made())
    (tmp_path / "submissions/1/0.json").unlink()  # killed between the two
    assert SubmissionStore(tmp_path).load() == []


def test_load__damaged_and_never_said_is_made_anew(tmp_path: Path) -> None:
    store = SubmissionStore(tmp_path)
    store.save(make_made())
    (tmp_path / "submissions/1/0.parquet").write_bytes(b"other bytes")
    assert store.load() == []
    assert not (tmp_path / "submissions/1/0.json").exists()


def test_load__damaged_blob_of_what_was_said_stays_said(tmp_path: Path) -> None:
    store = SubmissionStore(tmp_path)
    store.save(make_made())
    store.mark_uploaded(make_made().submission, ("relay",))
    (tmp_path / "submissions/1/0.parquet").unlink()
    assert [item.digest for item in store.load()] == [make_made().digest]


@pytest.mark.parametrize("damaged", [b"", b"\xf2elay"])
def test_load__a_damaged_mark_still_says_that_it_was_said(tmp_path: Path, damaged: bytes) -> None:
    store = SubmissionStore(tmp_path)
    store.save(make_made())
    store.mark_uploaded(make_made().submission, ("relay",))
    (tmp_path / "submissions/1/0.relays").write_bytes(damaged)
    assert [(item.digest, item.relays) for item in store.load()] == [(make_made().digest, ())]


def test_save__the_names_of_its_folders_are_on_the_disk_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: set[str] = set()
    monkeypatch.setattr(os, "fsync", lambda descriptor: synced.add(os.readlink(f"/proc/self/fd/{descriptor}")))
    SubmissionStore(tmp_path / "state").save(make_made())
    folder = tmp_path / "state" / "submissions"
    assert synced >= {str(each) for each in (tmp_path, tmp_path / "state", folder, folder / "1")}


def test_prune__old_steps_only(tmp_path: Path) -> None:
    store = SubmissionStore(tmp_path)
    for step in (1, 2, 3):
        store.save(make_made(step=step))
    store.prune(3)
    assert [item.submission.step for item in store.load()] == [3]
