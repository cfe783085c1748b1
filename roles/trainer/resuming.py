"""Where a leader resumes: from its own folder if that agrees with the ledger, else from one
rebuilt from ledger and relays."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

import structlog

from dht.errors import TransportError
from ledger.records import Commit
from roles.compute import ComputeThread
from roles.rl.checkpoint import CheckpointError
from roles.shardcast.manifest import manifest_digest
from roles.trainer.errors import StateMissing
from roles.trainer.journal import KEPT_CHECKPOINTS, Journal, manifest_in
from roles.trainer.pool import Pool
from roles.trainer.rebuild import Rebuild
from roles.trainer.stepping import Stepper
from roles.trusted import TrustedState

log = structlog.get_logger()


class Resuming:
    """Resumes training at the start of one term."""

    def __init__(
        self,
        *,
        term: int,
        stepper: Stepper,
        trusted: TrustedState,
        journal: Journal,
        compute: ComputeThread,
        rebuild: Rebuild,
    ) -> None:
        self._term, self._stepper, self._trusted = term, stepper, trusted
        self._journal, self._compute, self._rebuild = journal, compute, rebuild

    async def run(self, wait: Callable[[str], Awaitable[None]]) -> int:
        """The newest checkpoint made, or -1; `wait` is called with the reason for a long wait. Raises StateMissing."""
        made = await self._compute.load(self._made)
        commits = self._trusted.view.commits if self._trusted.view else {}
        while commits and self._is_behind(made, commits):
            made = await self._catch_up(commits[max(commits)], wait)
        return made

    def _made(self) -> int:
        """The newest checkpoint in our folder; -1 if there is none or the folder is unusable."""
        try:
            return self._stepper.restore()
        except (StateMissing, CheckpointError) as error:
            if not self._trusted.view or not self._trusted.view.commits:
                raise StateMissing(str(error)) from error
            log.warning("folder.unusable", why=str(error))
            return -1

    def _is_behind(self, made: int, commits: Mapping[int, Commit]) -> bool:
        """Whether the ledger has checkpoints that we lack, or our newest ones differ from its
        own or are not of this term."""
        newest = max(commits)
        if made < newest:
            return True
        rows = {step: self._journal.manifest(step) for step in range(newest, made + 1)}
        ours = rows[newest]
        if ours is None or manifest_digest(ours) != commits[newest].manifest:
            return True
        return any(row is None or manifest_in(row).term != self._term for step, row in rows.items() if step > newest)

    async def _catch_up(self, commit: Commit, wait: Callable[[str], Awaitable[None]]) -> int:
        """Rebuild from the committed checkpoint, however long the relays take to deliver it.  # CKPT-03"""
        try:
            await self._rebuild.run(commit)
        except (TransportError, TimeoutError) as error:
            log.warning("weights.unreachable", policy_step=commit.step, why=str(error) or "no answer in time")
            await wait(f"checkpoint {commit.step} is fetched from the relays")
            return -1
        return await self._compute.load(self._stepper.restore)

    def mark_used(self, pool: Pool, made: int) -> None:
        """Mark groups as used that our batches or other leaders' manifests have used, so that
        none is trained on twice."""
        for batch in self._journal.batches():
            pool.mark_used((group.place for group in batch.groups), batch.step)
        for step in range(max(0, made - KEPT_CHECKPOINTS), made + 1):
            row = self._journal.manifest(step)
            for item in manifest_in(row).used if row is not None else ():
                pool.mark_used(((item.submission, number) for number in item.groups), step)
