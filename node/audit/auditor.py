"""The order of an audit: terms, checkpoints, tallies, strikes, and a share of the rollouts."""

from __future__ import annotations

from pathlib import Path

from ledger.base import BaseLedger
from node.audit.checkpoints import audit_checkpoints
from node.audit.records import Records
from node.audit.report import AuditFailed, Report
from node.audit.rollouts import Sample, audit_rollouts
from node.audit.strikes import audit_strikes
from node.audit.tallies import audit_tallies, credited_rows
from roles.ports import Relays
from roles.run_terms import differing_terms, terms_of
from roles.spec import RunSpec


async def audit_run(
    spec: RunSpec, *, ledger: BaseLedger, relays: Relays, home: Path, sample: Sample | None = None
) -> Report:
    """Check a run from chain and blobs alone. Checkpoints are fetched into `home`.

    Raises AuditFailed for the first inconsistency found, LedgerError when the ledger cannot be read.
    """
    records, report = Records(relays, home), Report(spec.run_id)
    if differing_terms(await ledger.terms(), terms_of(spec)):
        raise AuditFailed("terms", "the contract holds another run under this id")
    report.held("terms")
    report.held("registrations signed by node and wallet", len(await ledger.registrations()))
    await audit_checkpoints(spec, ledger, records, report)
    bodies = await audit_tallies(spec, ledger, records, report)
    await audit_strikes(spec, ledger, records, report)
    if sample is not None:
        rows = credited_rows(bodies)
        await audit_rollouts(spec, ledger, records, report, rows=rows, sample=sample)
    return report
