"""A validator's durable records: rows it admitted, verdicts and attestations it signed. One SQLite file.

Records are durable before anything is announced, so after a restart the validator repeats what it said and never
contradicts it. A damaged row is skipped. A file that is damaged, or lost while its log remains, is never silently
recreated, because it keeps the validator from attesting two tallies of one round.
"""

from __future__ import annotations

import math
import os
import sqlite3
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, TypeVar

import structlog

from dht.disk import make_folder, sync
from dht.encoding import decode, encode, pack, unpack
from dht.envelope import Envelope, from_bytes, to_bytes
from dht.errors import DiskFull, Malformed, NodeError
from roles.messages import ROW_RULES, OpenStep, Submission, TallyRow, Verdict
from roles.verification.duplicates import Place

log = structlog.get_logger()
T = TypeVar("T")

NO_ROOM = (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR)
"""SQLite's codes for a full disk; it reports a log that cannot grow as an I/O error."""

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

_LATER_TABLES = """
CREATE TABLE IF NOT EXISTS faults (
    digest TEXT PRIMARY KEY, node TEXT NOT NULL, step INTEGER NOT NULL, row BLOB NOT NULL, verdicts BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS published (manifest TEXT PRIMARY KEY, size INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS histories (node TEXT PRIMARY KEY, sums TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS passed (node TEXT PRIMARY KEY, audits INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS weighed (digest TEXT PRIMARY KEY, step INTEGER NOT NULL);
"""
"""Tables that records of an earlier version may lack. Losing their contents contradicts nothing that was said."""


class StateError(NodeError):
    """The validator's own records cannot be read or written."""


class StateFull(StateError, DiskFull):
    """The records cannot be written because the disk is full."""


class JudgedRows:
    """The records of one validator in one run. Calls block for at most one write to the disk."""

    def __init__(self, path: Path) -> None:
        """Raises StateError when the file cannot be used or does not hold a validator's records."""
        self._path = path
        try:
            make_folder(path.parent)
            if not path.exists():
                _create(path)
            self._db = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
            try:
                _check(self._db)
                self._db.execute("PRAGMA journal_mode=WAL")
                self._db.execute("PRAGMA synchronous=FULL")
                self._db.executescript(_LATER_TABLES)
            except BaseException:
                self._db.close()
                raise
        except (OSError, sqlite3.Error) as error:
            raise _failure(path, error) from error

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
        """Store the verdict in force; call it before the verdict is announced."""
        values = (verdict.submission, verdict.step, encode(verdict), " ".join(sequences))
        with self._transaction() as db:
            db.execute("INSERT OR REPLACE INTO verdicts VALUES (?,?,?,?)", values)

    def keep_attestation(self, row: TallyRow) -> bool:
        """Store an attestation before it is announced. False when a different one was given in that epoch and round."""
        with self._transaction() as db:
            held = db.execute(
                "SELECT message FROM attestations WHERE epoch=? AND round=?", (row.epoch, row.round)
            ).fetchone()
            if held is not None:
                return bool(held[0] == encode(row))  # a damaged one still shows that there was one
            db.execute("INSERT INTO attestations VALUES (?,?,?)", (row.epoch, row.round, encode(row)))
        return True

    def keep_fault(self, submission: Submission, row: Envelope, verdicts: Iterable[Envelope]) -> None:
        """Remember a submission that a quorum found at fault, with the rows that prove it."""
        values = (row.digest, submission.node, submission.step, to_bytes(row), pack(*map(to_bytes, verdicts)))
        with self._transaction() as db:
            db.execute("INSERT OR REPLACE INTO faults VALUES (?,?,?,?,?)", values)

    def keep_history(
        self, node: str, digest: str, step: int, after: Callable[[tuple[float, ...]], tuple[float, ...]]
    ) -> tuple[float, ...]:
        """Add a submission to the node's sums and return them. Each submission is added once,
        however often it is judged."""
        with self._transaction() as db:
            held = db.execute("SELECT sums FROM histories WHERE node=?", (node,)).fetchone()
            sums = _sums(held[0]) if held is not None else ()
            if db.execute("SELECT 1 FROM weighed WHERE digest=?", (digest,)).fetchone() is None:
                sums = after(sums)
                db.execute("INSERT INTO weighed VALUES (?,?)", (digest, step))
                text = " ".join(format(each, ".6f") for each in sums)
                db.execute("INSERT OR REPLACE INTO histories VALUES (?,?)", (node, text))
        return sums

    def histories(self) -> dict[str, tuple[float, ...]]:
        """Sums by node."""
        return dict(self._read("SELECT node, sums FROM histories", lambda node, text: (str(node), _sums(text))))

    def keep_passed(self, node: str, audits: int) -> None:
        """Store how many consecutive audits the node has passed."""
        with self._transaction() as db:
            db.execute("INSERT OR REPLACE INTO passed VALUES (?,?)", (node, audits))

    def passed(self) -> dict[str, int]:
        """Audits passed by node."""
        return dict(self._read("SELECT node, audits FROM passed", lambda node, audits: (str(node), int(audits))))

    def forget_fault(self, digest: str) -> None:
        """Drop a fault that is no longer needed."""
        with self._transaction() as db:
            db.execute("DELETE FROM faults WHERE digest=?", (digest,))

    def faults(self) -> list[tuple[Envelope, tuple[Envelope, ...]]]:
        """Submissions at fault and the verdicts on each."""
        limits = ROW_RULES["submission/1"].max_bytes, ROW_RULES["verdict/2"].max_bytes
        return list(
            self._read(
                "SELECT row, verdicts FROM faults ORDER BY rowid",
                lambda row, verdicts: (
                    from_bytes(row, limit=limits[0]),
                    tuple(from_bytes(each, limit=limits[1]) for each in unpack(verdicts)),
                ),
            )
        )

    def keep_published(self, manifest: str, size: int) -> None:
        """Remember how many bytes a checkpoint has."""
        with self._transaction() as db:
            db.execute("INSERT OR REPLACE INTO published VALUES (?,?)", (manifest, size))

    def published(self) -> list[tuple[str, int]]:
        """Checkpoints and their bytes."""
        return list(self._read("SELECT manifest, size FROM published", lambda name, size: (str(name), int(size))))

    def opened(self) -> list[OpenStep]:
        """The stored open steps."""
        return list(self._read("SELECT message FROM opened", lambda message: decode(OpenStep, message)))

    def rows(self) -> Iterator[tuple[Envelope, bool]]:
        """Submissions ordered by step and index, and whether each was in time."""
        limit = ROW_RULES["submission/1"].max_bytes
        return self._read(
            "SELECT row, in_time FROM rows ORDER BY step, number, rowid",
            lambda data, in_time: (from_bytes(data, limit=limit), bool(in_time)),
        )

    def verdicts(self) -> list[tuple[Verdict, tuple[str, ...]]]:
        """Verdicts in force and the completions each credited."""
        return list(
            self._read(
                "SELECT message, sequences FROM verdicts ORDER BY rowid",
                lambda message, text: (decode(Verdict, message), tuple(text.split())),
            )
        )

    def attestations(self) -> list[TallyRow]:
        """Attestations given, oldest first."""
        query = "SELECT message FROM attestations ORDER BY epoch, round"
        return list(self._read(query, lambda message: decode(TallyRow, message)))

    def forget_before(self, step: int, epoch: int) -> None:
        """Drop what is final: steps below `step`, and attestations of epochs below `epoch`."""
        with self._transaction() as db:
            for table in ("opened", "rows", "verdicts", "weighed"):
                db.execute(f"DELETE FROM {table} WHERE step < ?", (step,))  # noqa: S608 - our own names
            db.execute("DELETE FROM attestations WHERE epoch < ?", (epoch,))

    def _read(self, query: str, parse: Callable[..., T]) -> Iterator[T]:
        """Parsed rows of a query. Damaged rows are left out, and their number is logged."""
        damaged = 0
        for values in self._all(query):
            try:
                yield parse(*values)
            except (Malformed, TypeError, ValueError, AttributeError):  # SQLite keeps any type in any column
                damaged += 1
        if damaged:
            log.warning(
                "records.damaged", file=str(self._path), rows=damaged, of=query.partition(" FROM ")[2].split()[0]
            )

    def _all(self, query: str) -> list[Any]:
        try:
            with closing(self._db.execute(query)) as cursor:
                return cursor.fetchall()
        except sqlite3.Error as error:
            raise _failure(self._path, error) from error

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        """BEGIN IMMEDIATE .. COMMIT, or ROLLBACK on an error. Raises StateError when the write fails."""
        try:
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield self._db
            except BaseException:
                if self._db.in_transaction:  # a full disk may have ended it already
                    self._db.execute("ROLLBACK")
                raise
            self._db.execute("COMMIT")
        except sqlite3.Error as error:
            raise _failure(self._path, error) from error


def _sums(text: object) -> tuple[float, ...]:
    """Parse sums; empty for a damaged row, so that the history starts again."""
    try:
        sums = tuple(float(part) for part in str(text).split())
    except ValueError:
        return ()
    return sums if all(math.isfinite(each) for each in sums) else ()


def _create(path: Path) -> None:
    """Create a file with empty tables, atomically: a file that is later found empty is then damaged, not new."""
    if path.with_name(f"{path.name}-wal").exists():
        raise sqlite3.DatabaseError("it is gone, its log is still there")
    temporary = path.with_name(f".{path.name}.new")
    temporary.unlink(missing_ok=True)
    with closing(sqlite3.connect(temporary)) as db:
        db.executescript(_TABLES)
    os.replace(temporary, path)
    sync(path.parent)


def _check(db: sqlite3.Connection) -> None:
    """Raises sqlite3.DatabaseError for a file that is damaged or belongs to another program."""
    found = db.execute("PRAGMA quick_check(1)").fetchone()
    if found != ("ok",):
        raise sqlite3.DatabaseError(str(found[0]).strip().replace("\n", " ")[:200] if found else "no answer")
    with closing(sqlite3.connect(":memory:")) as model:
        model.executescript(_TABLES)
        if not _columns(model) <= _columns(db):
            raise sqlite3.DatabaseError("its tables are not those of a validator")


def _columns(db: sqlite3.Connection) -> set[tuple[str, str]]:
    query = "SELECT t.name, c.name FROM sqlite_master t, pragma_table_info(t.name) c WHERE t.type = 'table'"
    return set(db.execute(query))


def _failure(path: Path, error: Exception) -> StateError:
    """The error to raise. SQLite's operational errors come from the disk; others mean that the file is damaged."""
    if isinstance(error, OSError | sqlite3.OperationalError):
        kind = StateFull if getattr(error, "sqlite_errorcode", 0) & 0xFF in NO_ROOM else StateError
        return kind(f"cannot use the validator's records {path}: {error}; check space and rights")
    return StateError(
        f"the validator's records {path} are damaged ({error}): put back a copy of the file. Without one nothing keeps this "
        "validator from attesting two tallies of one round: move the file away, and start only when the epoch that is open "
        "now is final"
    )


def place_of_verdict(verdict: Verdict) -> Place:
    """Node, step and index a verdict is about."""
    return verdict.node, verdict.step, verdict.index
