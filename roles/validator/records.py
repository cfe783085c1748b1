"""What a validator must not forget: rows it admitted, verdicts and attestations it signed. One SQLite file, durable before
anything is announced, so that a restart says again what was said and never contradicts it.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from dht.encoding import decode, encode
from dht.envelope import Envelope, from_bytes, to_bytes
from dht.errors import NodeError
from roles.messages import ROW_RULES, OpenStep, Submission, TallyRow, Verdict
from roles.verification.duplicates import Place

_TABLES = """
CREATE TABLE IF NOT EXISTS opened (step INTEGER PRIMARY KEY, message BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS rows (
    digest TEXT PRIMARY KEY, node TEXT NOT NULL, step INTEGER NOT NULL, number INTEGER NOT NULL, row BLOB NOT NULL,
    in_time INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS verdicts (
    digest TEXT PRIMARY KEY, step INTEGER NOT NULL, message BLOB NOT NULL, sequences TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS attestations (
    epoch INTEGER NOT NULL, round INTEGER NOT NULL, message BLOB NOT NULL, PRIMARY KEY (epoch, round));
"""


class StateError(NodeError):
    """The validator's own records cannot be read or written."""


class JudgedRows:
    """The records of one validator in one run. Calls block for a write to the disk at most."""

    def __init__(self, path: Path) -> None:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._db = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
            self._db.execute("PRAGMA journal_mode=WAL")
            self._db.execute("PRAGMA synchronous=FULL")
            self._db.executescript(_TABLES)
        except (OSError, sqlite3.Error) as error:
            raise StateError(f"cannot use the validator's records {path}: {error}") from error

    def close(self) -> None:
        """Close the file."""
        self._db.close()

    def keep_rows(self, rows: Iterable[tuple[Submission, Envelope, bool]], opened: Iterable[OpenStep]) -> None:
        """Remember admitted submissions, whether each was in time, and the open steps they were judged by."""
        with self._transaction() as db:
            for submission, row, in_time in rows:
                values = (row.digest, submission.node, submission.step, submission.index, to_bytes(row), in_time)
                db.execute("INSERT OR REPLACE INTO rows VALUES (?,?,?,?,?,?)", values)
            for step in opened:
                db.execute("INSERT OR REPLACE INTO opened VALUES (?,?)", (step.step, encode(step)))

    def keep_verdict(self, verdict: Verdict, sequences: tuple[str, ...] = ()) -> None:
        """Remember the verdict that stands; call it before the verdict is announced."""
        values = (verdict.submission, verdict.step, encode(verdict), " ".join(sequences))
        with self._transaction() as db:
            db.execute("INSERT OR REPLACE INTO verdicts VALUES (?,?,?,?)", values)

    def keep_attestation(self, row: TallyRow) -> bool:
        """Remember an attestation before it is announced. False when another was given in that epoch and round."""
        with self._transaction() as db:
            held = db.execute(
                "SELECT message FROM attestations WHERE epoch=? AND round=?", (row.epoch, row.round)
            ).fetchone()
            if held is not None:
                return bytes(held[0]) == encode(row)
            db.execute("INSERT INTO attestations VALUES (?,?,?)", (row.epoch, row.round, encode(row)))
        return True

    def opened(self) -> list[OpenStep]:
        """Open steps remembered."""
        return [decode(OpenStep, bytes(message)) for (message,) in self._all("SELECT message FROM opened")]

    def rows(self) -> Iterator[tuple[Envelope, bool]]:
        """Submissions in the order of their steps and indices, and whether each was in time."""
        limit = ROW_RULES["submission/1"].max_bytes
        for data, in_time in self._all("SELECT row, in_time FROM rows ORDER BY step, number, rowid"):
            yield from_bytes(bytes(data), limit=limit), bool(in_time)

    def verdicts(self) -> list[tuple[Verdict, tuple[str, ...]]]:
        """Verdicts that stand, and the completions each credited."""
        found = self._all("SELECT message, sequences FROM verdicts ORDER BY rowid")
        return [(decode(Verdict, bytes(message)), tuple(text.split())) for message, text in found]

    def attestations(self) -> list[TallyRow]:
        """Attestations given, oldest first."""
        found = self._all("SELECT message FROM attestations ORDER BY epoch, round")
        return [decode(TallyRow, bytes(message)) for (message,) in found]

    def forget_before(self, step: int, epoch: int) -> None:
        """Drop what is final: steps below `step`, and attestations of epochs below `epoch`."""
        with self._transaction() as db:
            for table in ("opened", "rows", "verdicts"):
                db.execute(f"DELETE FROM {table} WHERE step < ?", (step,))  # noqa: S608 - our own names
            db.execute("DELETE FROM attestations WHERE epoch < ?", (epoch,))

    def _all(self, query: str) -> list[Any]:
        try:
            with closing(self._db.execute(query)) as cursor:
                return cursor.fetchall()
        except sqlite3.Error as error:
            raise StateError(f"cannot read the validator's records: {error}") from error

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        """BEGIN IMMEDIATE .. COMMIT, or ROLLBACK on an error. Raises StateError when the disk does not take it."""
        try:
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield self._db
            except BaseException:
                self._db.execute("ROLLBACK")
                raise
            self._db.execute("COMMIT")
        except sqlite3.Error as error:
            raise StateError(f"cannot write the validator's records: {error}") from error


def place_of_verdict(verdict: Verdict) -> Place:
    """Node, step and index a verdict is about."""
    return verdict.node, verdict.step, verdict.index
