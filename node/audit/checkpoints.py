"""Checkpoints: committed in order, each linked to the one before, signed by the leading trainer,
starting from the base model."""

from __future__ import annotations

from collections.abc import Sequence

from dht.encoding import ZERO_DIGEST
from ledger.base import BaseLedger
from ledger.records import Commit
from node.audit.records import Records, parse_manifest
from node.audit.report import AuditFailed, Report
from roles.spec import RunSpec


async def audit_checkpoints(spec: RunSpec, ledger: BaseLedger, records: Records, report: Report) -> None:
    """Check every commit and, where available, its manifest. Raises AuditFailed."""
    commits = await ledger.commits()
    check_links(commits)
    report.held("commits", len(commits))
    for commit in commits:
        await _check_manifest(spec, ledger, records, report, commit)


def check_links(commits: Sequence[Commit]) -> None:
    """Check that steps count up from 0, parents match, terms never decrease and the final one
    is last. Raises AuditFailed."""
    before: Commit | None = None
    for number, commit in enumerate(commits):
        where = f"commit of checkpoint {commit.step}"
        if commit.step != number:
            raise AuditFailed(where, f"checkpoint {number} was due")
        if commit.parent != (before.manifest if before else ZERO_DIGEST):
            raise AuditFailed(where, "it does not follow from the checkpoint before")
        if before is not None and (before.final or commit.term < before.term or commit.block < before.block):
            raise AuditFailed(where, "it comes after the end of the run, or of its leader's term")
        before = commit


async def _check_manifest(spec: RunSpec, ledger: BaseLedger, records: Records, report: Report, commit: Commit) -> None:
    where = f"manifest of checkpoint {commit.step}"
    envelope = await records.manifest(commit.manifest)
    if envelope is None:
        report.lack(f"{where}: no relay has it with a trainer's signature")
        return
    manifest = parse_manifest(envelope)
    lease = await ledger.lease(commit.block)
    if envelope.digest != commit.manifest or manifest.run != spec.run_id:
        raise AuditFailed(where, "it is another manifest's, or another run's")
    if (manifest.step, manifest.parent) != (commit.step, commit.parent) or manifest.term > commit.term:
        raise AuditFailed(where, "its step, parent or term is not the one committed")
    if manifest.term == lease.term and envelope.signer != lease.leader:
        raise AuditFailed(where, f"signed by {envelope.signer}, while {lease.leader} led")
    if commit.step == 0:
        pinned = {(file.name, file.size) for file in spec.model.files}
        if {(file.name, file.size) for file in manifest.files} != pinned:
            raise AuditFailed(where, "its files are not the base model's")
    report.held("manifests")
