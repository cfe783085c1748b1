"""Re-verifies a random sample of the credited rollouts with the model itself. Heavy imports stay inside functions."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dht.encoding import digest
from dht.envelope import Envelope
from dht.errors import NodeError
from ledger.base import BaseLedger
from node.audit.records import Records
from node.audit.report import AuditFailed, Report
from roles.assignment import beacon_step, compute_beacon, compute_seed
from roles.messages import Submission, open_row
from roles.spec import RunSpec
from roles.tally.items import row_from_text

if TYPE_CHECKING:
    from roles.inference.engine import Engine
    from roles.tasks import Task
    from roles.verification import Finding

WHOLE = 2**64


@dataclass(frozen=True, slots=True)
class Sample:
    """The share of submissions to re-verify (0 to 1), the `seed` of the draw, and the settings for it."""

    share: float
    seed: str
    engine: Callable[[], Engine]
    task: Callable[[], Task]

    def takes(self, submission: str) -> bool:
        """Whether the draw selects the submission with this digest."""
        return int(digest("audit-sample/1", self.seed, submission)[:16], 16) < self.share * WHOLE


async def audit_rollouts(
    spec: RunSpec, ledger: BaseLedger, records: Records, report: Report, *, rows: Sequence[str], sample: Sample
) -> None:
    """Verify the drawn submissions. Raises AuditFailed for one that is provably at fault."""
    drawn = [row for row in (row_from_text(text, "submission/1") for text in rows) if sample.takes(row.digest)]
    if not drawn:
        return
    from roles.verification import Verifier

    engine = await asyncio.to_thread(sample.engine)
    verifier = Verifier(spec=spec, engine=engine, task=await asyncio.to_thread(sample.task))
    commits = {commit.step: commit for commit in await ledger.commits()}
    drawn.sort(key=lambda row: (_open(spec, row).policy_step, row.digest))  # the engine's weights change rarely
    loaded = ""
    for row in drawn:
        submission = _open(spec, row)
        where = f"rollouts of {submission.node}, step {submission.step}, index {submission.index}"
        policy = commits.get(submission.policy_step)
        if policy is None or policy.manifest != submission.policy:
            raise AuditFailed(where, "made with a policy that is no committed checkpoint")
        seed = await seed_from_ledger(spec, ledger, submission)
        folder, data = await records.policy(policy.manifest), await records.blob(submission.blob, limit=submission.size)
        if seed is None or folder is None or data is None:
            missing = "blob" if data is None else "policy" if folder is None else "beacon"
            report.lack(f"{where}: its {missing} is not available any more")
            continue
        if loaded != policy.manifest:
            await asyncio.to_thread(engine.load, folder)
            loaded = policy.manifest
        _judge(await asyncio.to_thread(verifier.judge, submission, seed=seed, data=data), where, report)


def _judge(finding: Finding, where: str, report: Report) -> None:
    reason = finding.reason.name.lower()
    if finding.outcome == "fault":
        raise AuditFailed(where, f"credited, and at fault: {reason} {finding.detail}".rstrip())
    if finding.outcome == "soft":
        report.lack(f"{where}: not decided on this machine ({reason} {finding.detail})")
    else:
        report.held("rollouts verified anew")


def _open(spec: RunSpec, row: Envelope) -> Submission:
    message = open_row(row, run=spec.run_id, buckets=spec.buckets)
    if not isinstance(message, Submission):
        raise NodeError("not a submission")
    return message


async def seed_from_ledger(spec: RunSpec, ledger: BaseLedger, submission: Submission) -> str | None:
    """The assignment's seed, derived from the ledger alone."""
    registrations = await ledger.registrations()
    held = registrations.get(submission.node) or next(
        (each for each in registrations.values() if submission.node in each.previous), None
    )
    commits = await ledger.commits()
    step = beacon_step(submission.step, spec.training.async_level)
    block = await ledger.block(held.first_block + spec.epoch.beacon_blocks) if held else None
    if held is None or block is None or step >= len(commits):
        return None
    beacon = compute_beacon(commits[step].manifest, block.hash)
    return compute_seed(run=spec.run_id, node=held.root, step=submission.step, index=submission.index, beacon=beacon)
