"""What a validator must remember across restarts and a full or broken disk."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
import structlog.testing

from roles.messages import TallyRow
from roles.validator.records import JudgedRows, StateError, StateFull
from tests.builders import VALIDATORS, WORKERS, make_head, make_submission, make_verdict, make_world

ROW = TallyRow(
    run="ab" * 32,
    epoch=0,
    round=1,
    closing_block=30,
    parent_root="00" * 32,
    root="ab" * 32,
    total=1,
    amount=0,
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


def filled(path: Path) -> JudgedRows:
    """Records with some of each."""
    world = make_world()
    submission = make_submission(world)
    records = JudgedRows(path)
    records.keep_rows([(submission, world.row(submission, WORKERS[0]), True)], make_head().open_steps)
    records.keep_verdict(make_verdict(submission), ("ab", "cd"))
    records.keep_attestation(ROW)
    return records


def garbage(path: Path) -> None:
    path.write_bytes(b"not a database, by any means" * 100)


def cut_to_nothing(path: Path) -> None:
    filled(path).close()
    path.write_bytes(b"")


def middle_overwritten(path: Path) -> None:
    filled(path).close()
    data = bytearray(path.read_bytes())
    data[4096:] = b"\xff" * (len(data) - 4096)
    path.write_bytes(data)


def of_another_program(path: Path) -> None:
    with closing(sqlite3.connect(path)) as db:
        db.executescript("CREATE TABLE rows (digest TEXT, price INTEGER)")


def gone_but_for_its_log(path: Path) -> None:
    path.with_name("judged.sqlite-wal").write_bytes(b"log")


@pytest.mark.parametrize(
    "spoil", [garbage, cut_to_nothing, middle_overwritten, of_another_program, gone_but_for_its_log]
)
def test_open__damaged_file_is_named_and_never_begun_anew(tmp_path: Path, spoil: Callable[[Path], None]) -> None:
    path = tmp_path / "judged.sqlite"
    spoil(path)
    for _ in range(2):
        with pytest.raises(StateError, match=r"judged\.sqlite are damaged .* put back a copy .* two tallies"):
            JudgedRows(path)


def test_open__file_where_the_folder_should_be_is_no_damage(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("in the way")
    with pytest.raises(StateError, match="check space and rights"):
        JudgedRows(tmp_path / "state" / "judged.sqlite")


def test_open__killed_while_it_was_made(tmp_path: Path) -> None:
    (tmp_path / ".judged.sqlite.new").write_bytes(b"half")
    JudgedRows(tmp_path / "judged.sqlite").close()


@pytest.mark.parametrize("value", [b"", b"\x00\xff", "text", 7, 1.5])
def test_read__damaged_rows_are_passed_over_and_said_once(tmp_path: Path, value: object) -> None:
    records = filled(tmp_path / "judged.sqlite")
    with closing(sqlite3.connect(tmp_path / "judged.sqlite")) as db, db:
        for table, column in (
            ("opened", "message"),
            ("rows", "row"),
            ("verdicts", "message"),
            ("attestations", "message"),
        ):
            db.execute(f"UPDATE {table} SET {column} = ?", (value,))  # noqa: S608 - our own names
    with structlog.testing.capture_logs() as logs:
        assert (list(records.rows()), records.opened(), records.verdicts(), records.attestations()) == ([], [], [], [])
    assert [line["of"] for line in logs] == ["rows", "opened", "verdicts", "attestations"]
    assert not records.keep_attestation(ROW)  # what it was is lost; that there was one is not
    records.close()


def test_keep_fault__with_the_rows_that_prove_it_and_sizes_of_checkpoints(tmp_path: Path) -> None:
    world = make_world()
    submission = make_submission(world)
    row = world.row(submission, WORKERS[0])
    votes = tuple(world.row(make_verdict(submission, outcome="fault", reason=401), key) for key in VALIDATORS[:2])
    records = JudgedRows(tmp_path / "judged.sqlite")
    records.keep_fault(submission, row, votes)
    records.keep_published("ab" * 32, 2**40)
    records.forget_before(100, 100)  # they outlive the epochs
    records.close()
    again = JudgedRows(tmp_path / "judged.sqlite")
    assert again.faults() == [(row, votes)]
    assert again.published() == [("ab" * 32, 2**40)]
    again.forget_fault(row.digest)
    assert again.faults() == []
    again.close()


def test_init__records_of_an_earlier_version_gain_what_they_lack(tmp_path: Path) -> None:
    path = tmp_path / "judged.sqlite"
    JudgedRows(path).close()
    with closing(sqlite3.connect(path)) as db:
        db.executescript("DROP TABLE faults; DROP TABLE published;")
    records = JudgedRows(path)
    assert (records.faults(), records.published()) == ([], [])
    records.close()


def test_keep__a_full_disk_is_told_from_a_damaged_file__ckpt_12(tmp_path: Path) -> None:
    records = JudgedRows(tmp_path / "judged.sqlite")
    records._db.execute("PRAGMA max_page_count = 1")
    with pytest.raises(StateFull, match="check space"):
        records.keep_passed("x" * 1_000_000, 1)
    records.keep_passed("y", 1)  # there is room for this
    records.close()
