"""Publishes checkpoints to relays, then the directory, then the ledger, in order of steps and
concurrently with training."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

import structlog

from dht.envelope import Envelope
from dht.errors import TransportError
from ledger.errors import LedgerError, LedgerRejected
from ledger.records import ZERO_DIGEST, Commit
from roles.announce import Voice
from roles.messages import CheckpointRow
from roles.ports import Clock, Ledger, Relays
from roles.shardcast.manifest import check_manifest, manifest_digest, total_bytes
from roles.trainer.deltas import Deltas
from roles.trainer.errors import CommitRefused, StateForked
from roles.trainer.heads import HeadBoard
from roles.trainer.journal import KEPT_CHECKPOINTS, Journal
from roles.trusted import TrustedState

log = structlog.get_logger()

PUT_TIMEOUT = 3600.0
RETRY_SECONDS = 1.0
COMMIT_TIMEOUT = 120.0
FOUND_SECONDS = 0.25
LOOK_SECONDS = 1.0
UNDONE_BLOCKS = 2
"""If a view this many blocks above a commit's block lacks the commit, a re-organisation of the chain has dropped it."""
COMMIT_SEEN_MS = 30_000
"""How long a commit that was sent or refused is looked for, since our view of the ledger may lag."""


@dataclass(slots=True)
class Sending:
    """State of a commit that was sent. `until`: when to stop looking for it on the ledger, in unix milliseconds."""

    until: int = 0
    refusal: str = ""


class Publication:
    """A queue of trained steps. `publish` enqueues one and returns at once; `run` sends until cancelled.

    Raises StateForked or CommitRefused when the ledger will never accept our checkpoint.
    """

    def __init__(
        self,
        *,
        term: int,
        trusted: TrustedState,
        voice: Voice,
        ledger: Ledger,
        relays: Relays,
        journal: Journal,
        heads: HeadBoard,
        clock: Clock,
        deltas: Deltas,
        committed: Callable[[int], None],
    ) -> None:
        self._term, self._committed = term, committed
        self._trusted, self._voice, self._ledger, self._relays = trusted, voice, ledger, relays
        self._journal, self._heads, self._clock = journal, heads, clock
        self._deltas = deltas
        self._queue: asyncio.Queue[tuple[int, bool]] = asyncio.Queue()
        self._uncommitted: CheckpointRow | None = None
        self._blocks: dict[int, int] = {}  # our newest commits and the blocks in which they were seen
        self._newest = (-1, False)

    def publish(self, step: int, *, final: bool) -> None:
        """Queue a checkpoint whose manifest is on disk."""
        self._queue.put_nowait((step, final))

    def withdraw(self) -> None:
        """Stop publishing the uncommitted checkpoint, because another trainer leads."""
        if self._uncommitted is not None:
            self._voice.withdraw(self._uncommitted)

    async def run(self) -> None:
        """Send checkpoints one by one until cancelled. Commits that a chain re-organisation undid are sent again."""
        while True:
            step, final = await self._next()
            await self._send(step, final)
            self._newest = (step, final)
            oldest_used = step - 2 * (self._trusted.spec.training.async_level + 1)
            # rollouts may be scored under any policy in the window
            kept = max(KEPT_CHECKPOINTS, self._trusted.spec.training.async_level + 2)
            await asyncio.to_thread(self._journal.prune, committed=step, used_from=oldest_used, kept=kept)
            await asyncio.to_thread(self._deltas.prune)

    async def _next(self) -> tuple[int, bool]:
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_SECONDS):
                    return await self._queue.get()
            await self._mend(self._newest[0] + 1)

    async def _mend(self, before: int) -> bool:
        """Commit again the steps below `before` that a re-organisation undid (relays still have
        them). Returns whether any was."""
        lost = self._first_lost()
        if lost is None or lost >= before:
            return False
        log.warning("checkpoint.undone", step=lost)
        for step in range(lost, before):
            final = (step, True) == self._newest
            self._blocks.pop(step, None)
            self._blocks[step] = (await self._commit(step, self._digest_of(step), final)).block
        return True

    def _first_lost(self) -> int | None:
        """The first of our commits that the chain no longer holds, by a view that is newer than the commit."""
        view = self._trusted.view
        if view is None:
            return None
        gone = [
            step
            for step, block in self._blocks.items()
            if step not in view.commits and view.head.number > block + UNDONE_BLOCKS
        ]
        return min(gone, default=None)

    async def _send(self, step: int, final: bool) -> None:
        row = self._journal.manifest(step)
        if row is None:
            raise ValueError(f"checkpoint {step} has no manifest")
        digest = manifest_digest(row)
        relays = await self._broadcast(step, row)
        published = self._clock()
        self._uncommitted = CheckpointRow(term=self._term, step=step, manifest=digest)
        await self._voice.announce(self._uncommitted, relays=relays)
        commit = await self._commit(step, digest, final)
        self._uncommitted = None
        self._blocks = {known: block for known, block in self._blocks.items() if known > step - KEPT_CHECKPOINTS}
        self._blocks[step] = commit.block
        self._committed(step)
        log.info(
            "checkpoint.committed",
            step=step,
            manifest=digest,
            block=commit.block,
            final=final,
            seconds=(self._clock() - published) / 1000,
        )
        await self._heads.set_policy(commit)

    async def _broadcast(self, step: int, row: Envelope) -> tuple[str, ...]:
        """Put a checkpoint on relays. Returns their ids."""
        began = self._clock()
        relays = await self._put(step, row)
        log.info(
            "checkpoint.published",
            step=step,
            manifest=manifest_digest(row),
            bytes=total_bytes(check_manifest(row, run=row.run, trainers=frozenset({row.signer}))),
            relays=len(relays),
            seconds=(self._clock() - began) / 1000,
        )
        return relays

    async def _put(self, step: int, row: Envelope) -> tuple[str, ...]:
        delta, whole = await asyncio.to_thread(self._deltas.make, step), self._deltas.is_anchor(step)
        while True:
            try:
                async with asyncio.timeout(PUT_TIMEOUT):
                    return await self._relays.put_checkpoint(
                        row, self._journal.checkpoint(step), delta=delta, whole=whole
                    )
            except (TransportError, TimeoutError) as error:
                log.warning("checkpoint.unsent", step=step, why=str(error) or "no relay answers in time")
                await asyncio.sleep(RETRY_SECONDS)

    async def _commit(self, step: int, digest: str, final: bool) -> Commit:
        """The commit as recorded on the ledger. It is sent once, and found again after a restart, a lost response or a
        lagging view of the ledger."""
        outcome, said = Sending(), ""
        while True:
            try:
                if await self._mend(step):
                    outcome = Sending()  # it was refused because an earlier commit was missing
                async with asyncio.timeout(COMMIT_TIMEOUT):
                    found = await self._found(step, digest)
                    if found is not None:
                        return found
                    if await self._send_commit(step, digest, final, outcome):
                        continue
            except (LedgerError, TimeoutError) as error:
                why = str(error) or "the ledger does not answer"
                if why != said:
                    log.warning("checkpoint.uncommitted", step=step, why=why)
                said = why
            await asyncio.sleep(RETRY_SECONDS if said else FOUND_SECONDS)

    async def _found(self, step: int, digest: str) -> Commit | None:
        for commit in await self._ledger.commits(step):
            if commit.step == step and commit.manifest != digest:
                raise StateForked(f"the ledger holds another checkpoint {step} than the one made here")
            if commit.step == step:
                return commit
        return None

    async def _send_commit(self, step: int, digest: str, final: bool, outcome: Sending) -> bool:
        """Send the commit, unless one already sent is still being looked for. Returns whether it was sent. Raises
        CommitRefused when a refusal outlasts that time."""
        now = self._clock()
        if outcome.refusal and now > outcome.until:
            raise CommitRefused(f"the contract refuses checkpoint {step}: {outcome.refusal}")
        if now <= outcome.until:
            return False
        parent = ZERO_DIGEST if step == 0 else self._digest_of(step - 1)
        outcome.until = now + COMMIT_SEEN_MS
        try:
            await self._ledger.commit_checkpoint(
                term=self._term, step=step, manifest=digest, parent=parent, final=final
            )
        except LedgerRejected as error:
            outcome.refusal = error.reason
        except LedgerError:
            outcome.until = 0
            raise
        return True

    def _digest_of(self, step: int) -> str:
        row = self._journal.manifest(step)
        if row is not None:
            return manifest_digest(row)
        committed = self._trusted.committed(step)
        if committed is None:
            raise ValueError(f"checkpoint {step} has no manifest")
        return committed
