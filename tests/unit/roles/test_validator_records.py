"""What a validator must not forget, across restarts and a full or broken disk."""

from __future__ import annotations

from pathlib import Path

import pytest

from roles.messages import TallyRow
from roles.validator.records import JudgedRows, StateError
from tests.builders import WORKERS, make_head, make_submission, make_verdict, make_world

ROW = TallyRow(
    run="ab" * 32,
    epoch=0,
    round=1,
    closing_block=30,
    parent_root="00" * 32,
    root="ab" * 32,
    total=1,
    blob="cd" * 32,
    size=10,
    operator="0x" + "11" * 20,
    signature="00" * 65,
)


def test_keep__all_is_there_after_a_restart(tmp_path: Path) -> None:
    world = make_world()
    submission = make_submission(world)
    row = world.row(submission, WORKERS[0])
    records = JudgedRows(tmp_path / "judged.sqlite")
    records.keep_rows([(submission, row, True)], make_head().open_steps)
    records.keep_verdict(make_verdict(submission, outcome="soft", reason=201))
    records.keep_verdict(make_verdict(submission), ("ab", "cd"))
    records.close()
    again = JudgedRows(tmp_path / "judged.sqlite")
    assert list(again.rows()) == [(row, True)]
    assert tuple(again.opened()) == make_head().open_steps
    assert again.verdicts() == [(make_verdict(submission), ("ab", "cd"))]
    again.close()


def test_keep_attestation__one_per_epoch_and_round(tmp_path: Path) -> None:
    records = JudgedRows(tmp_path / "judged.sqlite")
    assert records.keep_attestation(ROW)
    assert records.keep_attestation(ROW)
    assert not records.keep_attestation(ROW.model_copy(update={"root": "ef" * 32}))
    assert records.attestations() == [ROW]
    records.close()


def test_forget_before__what_is_final(tmp_path: Path) -> None:
    world = make_world()
    submission = make_submission(world)
    records = JudgedRows(tmp_path / "judged.sqlite")
    records.keep_rows([(submission, world.row(submission, WORKERS[0]), True)], make_head().open_steps)
    records.keep_verdict(make_verdict(submission))
    records.keep_attestation(ROW)
    records.forget_before(2, 1)
    assert (list(records.rows()), records.opened(), records.verdicts(), records.attestations()) == ([], [], [], [])
    records.close()


def test_open__damaged_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "judged.sqlite").write_bytes(b"not a database, by any means" * 100)
    with pytest.raises(StateError, match=r"judged\.sqlite"):
        JudgedRows(tmp_path / "judged.sqlite")
