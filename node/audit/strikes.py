"""Strikes: each needs evidence proven by a quorum's signatures, and a quorum to be made or lifted."""

from __future__ import annotations

from ledger.base import BaseLedger
from ledger.records import by_any_key
from node.audit.records import Records
from node.audit.report import AuditFailed, Report
from roles.evidence import MAX_EVIDENCE, EvidenceRefused, check_evidence, steps_dealt_with
from roles.liability import strikes_before
from roles.spec import RunSpec
from roles.tally.context import Bench


async def audit_strikes(spec: RunSpec, ledger: BaseLedger, records: Records, report: Report) -> None:
    """Check every strike. Raises AuditFailed."""
    strikes, commits = await ledger.strikes(), await ledger.commits()
    nodes = by_any_key(await ledger.registrations())
    for held in strikes:
        strike = held.strike
        where = f"strike {strike.number} of {strike.node}"
        judges = await ledger.validators_at(held.block)
        if len(set(held.attesters)) < judges.quorum:
            raise AuditFailed(where, "no quorum of validators attested it")
        blob = await records.blob(strike.evidence, limit=MAX_EVIDENCE)
        if blob is None:
            report.lack(f"{where}: no relay has its evidence {strike.evidence[:12]}")
            continue
        theirs = nodes[strike.node].keys if strike.node in nodes else (strike.node,)
        before = strikes_before(await ledger.strikes(held.block - 1), strike.node, theirs)
        try:
            check_evidence(
                blob,
                node=strike.node,
                number=strike.number,
                bench=Bench(spec.run_id, spec.buckets, [item.node for item in judges.validators], judges.quorum),
                needed=spec.checks.strikes_to_eject,
                after_step=steps_dealt_with(before, commits, async_level=spec.training.async_level),
                keys=theirs,
            )
        except EvidenceRefused as error:
            if held.outcome != "lifted":
                raise AuditFailed(where, str(error)) from error
        report.held("strikes")
