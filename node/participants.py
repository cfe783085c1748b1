"""The participants of a run: node records, registrations, what each has earned, and its recent performance."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from dht.envelope import Envelope
from dht.errors import PeerError
from ledger.records import Registration
from node.contributions import Contributions, pending_rows, read_contributions, tally_blobs
from node.visitor import Visit
from roles.messages import NodeRecord, Role, nodes_key, open_row
from roles.reputation import Records, ValidatorRecord, WorkerRecord, compute_records
from roles.spec import RunSpec

ROLES_AS_LISTED: tuple[Role, ...] = ("trainer", "validator", "relay", "worker")


@dataclass(frozen=True, slots=True)
class Participant:
    """One node of a run. `share` is accepted/judged for a worker, agreed/judged for a validator; None before any."""

    node: str
    role: str
    state: str  # online, offline, unseen
    wallet: str | None
    is_linked: bool
    since_block: int | None  # first valid registration; None for nodes named in the run's terms
    share: float | None
    judged: int
    strikes: int  # submissions that a quorum found at fault, among those still available
    reasons: Mapping[str, int]
    final: int  # units on the ledger
    pending: int
    hardware: str
    software: str


async def read_participants(visit: Visit) -> list[Participant]:
    """Every node seen in the DHT, named by the run, or registered on the ledger. Raises TransportError, LedgerError."""
    spec, get = visit.spec, tally_blobs(visit.relays)
    earned = await read_contributions(spec, ledger=visit.ledger, get=get, directory=visit.directory)
    rows = await pending_rows(spec, visit.ledger, visit.directory)
    keys = [nodes_key(spec.run_id, role) for role in ROLES_AS_LISTED]
    seen = await visit.directory.read(keys)
    return list_participants(
        spec,
        seen=newest_records((row for key in keys for row in seen.get(key, ())), spec=spec),
        registrations=await visit.ledger.registrations(),
        records=compute_records(rows, spec=spec, judges=await visit.ledger.validators_at()),
        earned=earned,
    )


def newest_records(rows: Iterable[Envelope], *, spec: RunSpec) -> dict[str, NodeRecord]:
    """The newest record of each node. Rows whose signer is not the node they name are left out."""
    found: dict[str, NodeRecord] = {}
    for row in sorted(rows, key=lambda row: row.sequence):
        try:
            record = open_row(row, run=spec.run_id, buckets=spec.buckets)
        except PeerError:
            continue
        if isinstance(record, NodeRecord) and record.node == row.signer:
            found[record.node] = record
    return found


def list_participants(
    spec: RunSpec,
    *,
    seen: Mapping[str, NodeRecord],
    registrations: Mapping[str, Registration],
    records: Records,
    earned: Contributions,
) -> list[Participant]:
    """Combine what is known of each node (all the keys it has had), ordered by role, then by what was earned."""
    roles: dict[str, str] = {node: record.role for node, record in seen.items()}
    roles |= {item.node: "validator" for item in spec.validators} | {item.node: "trainer" for item in spec.trainers}
    payouts = {item.node: item.payout for item in (*spec.validators, *spec.trainers)}
    replaced = {key for held in registrations.values() for key in held.previous}
    everybody = {**roles, **dict.fromkeys(registrations.keys() - roles.keys(), "worker")}
    participants = [
        _participant(
            node,
            role,
            seen=seen.get(node),
            registration=registrations.get(node),
            payout=payouts.get(node),
            records=records,
            earned=earned,
        )
        for node, role in everybody.items()
        if node not in replaced
    ]
    return sorted(participants, key=lambda one: (_rank(one.role), -one.final - one.pending, one.node))


def _rank(role: str) -> int:
    return ROLES_AS_LISTED.index(role) if role in ROLES_AS_LISTED else len(ROLES_AS_LISTED)


def _participant(
    node: str,
    role: str,
    *,
    seen: NodeRecord | None,
    registration: Registration | None,
    payout: str | None,
    records: Records,
    earned: Contributions,
) -> Participant:
    keys = registration.keys if registration else (node,)
    worker = _handed_in(records.workers, keys) if role != "validator" else WorkerRecord()
    record = records.validators.get(node, ValidatorRecord()) if role == "validator" else worker
    linked = payout or (registration.wallet if registration else None)
    return Participant(
        node=node,
        role=role,
        state=seen.state if seen else "unseen",
        wallet=linked or (registration.claimed if registration else None),
        is_linked=linked is not None,
        since_block=registration.first_block if registration else None,
        share=record.share,
        judged=_judged(record),
        strikes=worker.faults,
        reasons=dict(worker.reasons),
        final=_units(earned.final, keys),
        pending=_units(earned.pending, keys),
        hardware=seen.hardware if seen else "",
        software=seen.software if seen else "",
    )


def _handed_in(workers: Mapping[str, WorkerRecord], keys: Sequence[str]) -> WorkerRecord:
    """What became of a node's submissions, whichever of its keys signed them."""
    found = [workers[key] for key in keys if key in workers]
    return WorkerRecord(
        accepted=sum(each.accepted for each in found),
        faults=sum(each.faults for each in found),
        soft=sum(each.soft for each in found),
        reasons=sum((each.reasons for each in found), Counter()),
    )


def _judged(record: WorkerRecord | ValidatorRecord) -> int:
    if isinstance(record, WorkerRecord):
        return record.accepted + record.faults + record.soft
    return record.agreed + record.differed


def _units(units: Mapping[tuple[str, str | None], int], keys: Sequence[str]) -> int:
    return sum(count for (owner, _), count in units.items() if owner in keys)


def count_states(participants: Sequence[Participant]) -> dict[str, int]:
    """How many nodes of each role are online."""
    return {role: sum(one.role == role and one.state == "online" for one in participants) for role in ROLES_AS_LISTED}
