"""Tallies: recounts each final root from the signed rows in its blob and the ledger's facts, and
checks that no more was paid."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from dataclasses import replace

from ledger.base import BaseLedger
from ledger.records import FinalRoot, Proposal
from node.audit.records import Records
from node.audit.report import AuditFailed, Report
from roles.messages import Receipt
from roles.spec import RunSpec
from roles.tally import (
    MAX_BLOB,
    TallyBody,
    TallyContext,
    TallyFault,
    TallyRefused,
    check_tally,
    open_final_tally,
    open_receipt,
    read_context,
)


async def audit_tallies(spec: RunSpec, ledger: BaseLedger, records: Records, report: Report) -> list[TallyBody]:
    """Recount every final root. Returns the tally bodies read. Raises AuditFailed."""
    roots = await ledger.final_roots()
    published = await records.published(spec, {commit.step: commit for commit in await ledger.commits()})
    bodies: list[TallyBody] = []
    for root in roots:
        await _check_attesters(ledger, root)
        report.held("roots with a quorum")
    for number, root in enumerate(roots):
        blob = await records.blob(root.blob, limit=MAX_BLOB)
        if blob is None:
            report.lack(f"tally of epoch {number} and those after it: no relay has its blob {root.blob[:12]}")
            return bodies
        contexts = [
            await read_context(
                ledger,
                spec=spec,
                roots=roots[:number],
                parent=bodies[-1] if bodies else None,
                closing_block=root.closing_block,
                published=published,
                attested_at=block,
            )
            for block in (root.block, root.closing_block)
        ]
        body, unknown = await asyncio.to_thread(_recount, blob, root, contexts)
        bodies.append(body)
        _count(body, report, unknown=unknown)
    if bodies:
        await _check_paid(ledger, bodies[-1])
        report.held("payments bounded")
    return bodies


def _recount(blob: bytes, root: FinalRoot, contexts: Sequence[TallyContext]) -> tuple[TallyBody, list[int]]:
    """Recount a root's tally under the validators in force when it was sent or, if they were replaced in the meantime,
    under those of its closing block. Also returns the checkpoints in its receipts whose size is no longer known; for
    those any size is accepted. Raises AuditFailed."""
    context = contexts[0]
    where = f"tally of epoch {root.epoch}"
    proposal = Proposal(
        run=context.run,
        epoch=root.epoch,
        round=root.round,
        closing_block=root.closing_block,
        parent_root=context.parent_root,
        root=root.root,
        total=root.total,
        blob=root.blob,
        amount=root.amount,
    )
    if root.epoch != context.epoch or root.closing_block <= context.opening_block:
        raise AuditFailed(where, "epochs do not follow one another")
    unknown: dict[int, int] = {}
    try:
        body = open_final_tally(blob, root)
        unknown = _sizes_said([open_receipt(text, context) for text in body.receipts], context)
        sized, other = (replace(one, published={**one.published, **unknown}) for one in contexts)
        if other.bench != sized.bench:
            with contextlib.suppress(TallyRefused):
                check_tally(blob, proposal, other)
                return body, sorted(unknown)
        check_tally(blob, proposal, sized)
    except TallyRefused as error:
        if not (unknown and error.fault is TallyFault.WRONG_UNITS):
            raise AuditFailed(where, str(error)) from error
    return body, sorted(unknown)


def _sizes_said(receipts: Sequence[Receipt], context: TallyContext) -> dict[int, int]:
    """For each checkpoint whose manifest is unavailable, the largest size that a receipt names,
    so that no receipt is capped."""
    said: dict[int, int] = {}
    for receipt in receipts:
        if receipt.step not in context.published:
            said[receipt.step] = max(said.get(receipt.step, 0), sum(share.size for share in receipt.shares))
    return said


def _count(body: TallyBody, report: Report, *, unknown: Sequence[int]) -> None:
    report.held("submissions", len(body.items) + len(body.refusals))
    report.held("verdicts", sum(len(item.verdicts) for item in (*body.items, *body.refusals)))
    if unknown:
        report.lack(
            f"what relays earned in the tally of epoch {body.epoch}: no relay has the manifests of its checkpoints, whose "
            f"sizes bound it: {', '.join(map(str, unknown))}"
        )
        return
    report.held("tallies")
    report.held("receipts", len(body.receipts))
    report.held("leaves", len(body.leaves))


async def _check_attesters(ledger: BaseLedger, root: FinalRoot) -> None:
    """Check the attesters named in the contract's event; the contract has verified their
    signatures. Raises AuditFailed."""
    judges = await ledger.validators_at(root.block)
    allowed = {item.operator.lower() for item in judges.validators}
    attesters = {name.lower() for name in root.attesters}
    if not attesters <= allowed or len(attesters) < judges.quorum:
        raise AuditFailed(f"root of epoch {root.epoch}", "no quorum of the validators of that block attested it")


async def _check_paid(ledger: BaseLedger, last: TallyBody) -> None:
    amounts = {(leaf.role, leaf.node, leaf.wallet): leaf.amount for leaf in last.leaves}
    for holder, paid in (await ledger.paid()).items():
        if paid > amounts.get(holder, 0):
            role, node, wallet = holder
            raise AuditFailed(
                f"payments to {wallet}", f"{paid} paid for {role} {node}, {amounts.get(holder, 0)} earned"
            )


def credited_rows(bodies: Sequence[TallyBody]) -> list[str]:
    """Credited submissions as base64 rows, in the order of the tallies."""
    return [item.submission for body in bodies for item in body.items]
