"""The pending transaction, written to disk before it is sent, and a lock so that processes sharing a
folder take turns with one key.

A deployment stays on disk after it is done, because nothing on the chain says that a
contract is the one requested here.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
from collections.abc import AsyncIterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from eth_account.typed_transactions.typed_transaction import TypedTransaction
from eth_utils.crypto import keccak
from hexbytes import HexBytes

from ledger.disk import sync, write_durably
from ledger.errors import LedgerError, LedgerUnavailable
from ledger.recursion import restore_recursion_limit

restore_recursion_limit()

TURN_SECONDS = 120.0
"""How long to wait for another process that sends with the same key from the same folder."""
TURN_PAUSE = 0.05


@dataclass(frozen=True, slots=True)
class Pending:
    """A transaction not yet known to be in a block: its fields, and every signed form sent so far (hex).

    `value` is in wei. `to`, `data` and `value` define the call; nonce and fees only affect its delivery.
    """

    nonce: int
    to: str | None
    data: str
    gas: int
    priority_fee: int
    max_fee: int
    attempts: tuple[str, ...]
    hashes: tuple[str, ...]
    value: int = 0

    def is_for(self, to: str | None, data: str, value: int) -> bool:
        """Whether this is the same call, so that sending it again would do the same thing twice."""
        return (self.to, self.data, self.value) == (to, data, value)

    def with_attempt(self, raw: str, digest: str) -> Pending:
        """A copy with one more signed form."""
        return replace(self, attempts=(*self.attempts, raw), hashes=(*self.hashes, digest))


class TransactionJournal:
    """At most one transaction, kept in a file, or only in memory when `path` is None."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self.pending = _load(path)

    @contextlib.asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Hold the key's lock against other processes of this folder, and reload what they left.

        Raises LedgerUnavailable when another process holds it too long, LedgerError when the file is not a journal.
        """
        if self._path is None:
            yield
            return
        descriptor = os.open(self._path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT, 0o600)
        try:
            await _lock(descriptor)
            self.pending = _load(self._path)
            yield
        finally:
            os.close(descriptor)

    def keep_deployed(self) -> None:
        """Record that the pending deployment is done."""
        if self._path is not None and self.pending is not None:
            self._path.replace(self._path.with_suffix(".deployed"))
            sync(self._path.parent)
        self.pending = None

    def deployed(self, data: str) -> Pending | None:
        """The deployment of this code that was done earlier from this folder; None without one."""
        if self._path is None:
            return None
        found = _load(self._path.with_suffix(".deployed"))
        return found if found is not None and found.data == data else None

    def keep(self, pending: Pending | None) -> None:
        """Store the pending transaction; None when nothing is pending any more."""
        if self._path is not None and pending is not None:
            write_durably(self._path, json.dumps(asdict(pending)).encode())
        elif self._path is not None:
            self._path.unlink(missing_ok=True)
            with contextlib.suppress(OSError):  # what comes back after a power cut is found done, and never made twice
                sync(self._path.parent)
        self.pending = pending


async def _lock(descriptor: int) -> None:
    loop = asyncio.get_running_loop()
    deadline = loop.time() + TURN_SECONDS
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError as error:
            if loop.time() > deadline:
                raise LedgerUnavailable("another process is sending with the same key: try again later") from error
        await asyncio.sleep(TURN_PAUSE)


def _load(path: Path | None) -> Pending | None:
    if path is None or not path.exists():
        return None
    try:
        fields = json.loads(path.read_text())
        pending = Pending(**{**fields, "attempts": tuple(fields["attempts"]), "hashes": tuple(fields["hashes"])})
        _check(pending)
    except FileNotFoundError:  # another process finished it in the meantime
        return None
    except OSError as error:  # tell the user not to remove the file: it may hold a payment
        raise LedgerError(
            f"cannot read {path}, a transaction under way: {error.strerror}; check its owner and mode"
        ) from error
    except (ValueError, TypeError, KeyError) as error:
        raise LedgerError(f"{path} is not a transaction journal: see what it holds, then remove it") from error
    return pending


def _check(pending: Pending) -> None:
    """Check that each form matches its hash and is this very call. Raises ValueError. With a flipped bit in the file, a
    payment that was made would be searched for in vain and made again."""
    fields = (pending.nonce, (pending.to or "0x").lower(), pending.data.lower(), pending.gas, pending.value)
    forms = [bytes.fromhex(raw) for raw in pending.attempts]
    if not forms or tuple(keccak(form).hex() for form in forms) != pending.hashes:
        raise ValueError("a form and its hash differ")
    for form in forms:
        said = TypedTransaction.from_bytes(HexBytes(form)).as_dict()
        to, data = ("0x" + bytes(said[name]).hex() for name in ("to", "data"))
        if (said["nonce"], to, data, said["gas"], said["value"]) != fields:
            raise ValueError("a form is of another call")
