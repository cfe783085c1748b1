"""What wallets and nodes have earned: final on the ledger (with the tally behind the root), or accepted but not final.

The root on chain binds a tally's leaves. The leaves themselves come from any relay and are checked against it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from dht.envelope import Envelope
from ledger.client import LedgerClient
from ledger.merkle import merkle_root
from ledger.records import FinalRoot, Registration, ValidatorSet, by_any_key
from node.errors import ConfigError
from roles.messages import submissions_key, verdicts_key
from roles.ports import Directory
from roles.shardcast.client import RelayClient
from roles.spec import RunSpec
from roles.tally import MAX_BLOB, TallyBody, oldest_block, open_final_tally, pending_contributions, plain_leaves

Get = Callable[[str], Awaitable[bytes]]
"""Fetches the blob with this digest from the relays. Raises TransportError."""
Owner = tuple[str, str | None]
"""A node, and the wallet it was linked to."""
STEPS_PENDING = 32
"""How many steps back to look for rows that are not final yet. The DHT keeps rows for ten minutes."""


def linked_wallet(node: str, registrations: Mapping[str, Registration]) -> str | None:
    """The wallet that a node is linked to now. It also receives what the node earned before it was linked."""
    held = registrations.get(node)
    return held.wallet if held else None


def claimed_wallet(node: str, registrations: Mapping[str, Registration]) -> str | None:
    """The address that a node claims without the wallet's signature."""
    held = registrations.get(node)
    return held.claimed if held else None


@dataclass(frozen=True, slots=True)
class Contributions:
    """Units (verified tokens) by (node, wallet). `root` is the final root read, None before the first. `registrations`
    are indexed by every key of their nodes."""

    root: FinalRoot | None
    final: Mapping[Owner, int]
    pending: Mapping[Owner, int]
    registrations: Mapping[str, Registration]

    def by_wallet(self) -> dict[str, tuple[int, int]]:
        """Final and pending units per wallet, including those that its nodes earned before they were linked. An
        unlinked node appears under the address it claims, marked as unlinked."""
        totals: dict[str, tuple[int, int]] = {}
        for owner in {**self.final, **self.pending}:
            name = self.name_of(owner)
            final, pending = totals.get(name, (0, 0))
            totals[name] = final + self.final.get(owner, 0), pending + self.pending.get(owner, 0)
        return dict(sorted(totals.items(), key=lambda item: (-sum(item[1]), item[0])))

    def name_of(self, owner: Owner) -> str:
        """The wallet of an owner; without one, a text to show instead."""
        node, wallet = owner
        if ours := wallet or linked_wallet(node, self.registrations):
            return ours
        claimed = claimed_wallet(node, self.registrations)
        return f"{claimed} (unlinked)" if claimed else f"{node} (no wallet)"


def tally_blobs(relays: RelayClient) -> Get:
    """Fetches tally blobs from the run's relays."""
    return lambda digest: relays.get(digest, limit=MAX_BLOB)


async def read_final(ledger: LedgerClient, get: Get) -> tuple[FinalRoot | None, TallyBody | None]:
    """The newest final root and its tally. Raises ConfigError when the tally does not match the root."""
    roots = await ledger.final_roots()
    if not roots:
        return None, None
    body = open_final_tally(await get(roots[-1].blob), roots[-1])
    leaves = plain_leaves(body.leaves)
    sums = sum(leaf.units for leaf in leaves), sum(leaf.amount for leaf in leaves)
    if merkle_root(leaves) != roots[-1].root or sums != (roots[-1].total, roots[-1].amount):
        raise ConfigError(
            "the tally's leaves are not what the root on the ledger binds: the validators signed nonsense"
        )
    return roots[-1], body


def worker_units(body: TallyBody) -> dict[Owner, int]:
    """Verified tokens by (node, wallet)."""
    return {(leaf.node, leaf.wallet): leaf.units for leaf in body.leaves if leaf.role == "worker"}


async def read_contributions(
    spec: RunSpec, *, ledger: LedgerClient, get: Get, directory: Directory | None
) -> Contributions:
    """Everything known now; without a directory, only what is final. Raises
    LedgerError, TransportError, ConfigError."""
    root, body = await read_final(ledger, get)
    final = worker_units(body) if body else {}
    registrations = by_any_key(await ledger.registrations())
    pending: Mapping[Owner, int] = {}
    if directory is not None:
        rows = await pending_rows(spec, ledger, directory)
        judges = await ledger.validators_at()
        oldest = oldest_block(await ledger.final_roots(), body, validators=len(judges.validators))
        past = {commit.step for commit in await ledger.commits() if commit.block <= oldest}
        pending = _pending(spec, rows, body, registrations, judges, past)
    return Contributions(root, final, pending, registrations)


async def pending_rows(spec: RunSpec, ledger: LedgerClient, directory: Directory) -> list[Envelope]:
    """Submission and verdict rows of the last steps, as far as the DHT still has them."""
    commits = await ledger.commits()
    newest = commits[-1].step if commits else 0
    steps = range(max(1, newest - STEPS_PENDING), newest + spec.training.async_level + 2)
    buckets = range(spec.buckets)
    keys = [
        key(spec.run_id, step, bucket)
        for step in steps
        for bucket in buckets
        for key in (submissions_key, verdicts_key)
    ]
    found = await directory.read(keys)
    return [row for rows in found.values() for row in rows]


def _pending(
    spec: RunSpec,
    rows: Sequence[Envelope],
    body: TallyBody | None,
    registrations: Mapping[str, Registration],
    judges: ValidatorSet,
    past: Collection[int],
) -> Mapping[Owner, int]:
    return pending_contributions(
        rows,
        spec=spec,
        judges=judges,
        registrations=registrations,
        credited=body.places() if body else (),
        past=past,
    )


def tokens_by_wallet(tokens: Mapping[str, int], registrations: Mapping[str, Registration]) -> Counter[str]:
    """Units counted by node, summed per linked wallet (or per node id where there is none)."""
    totals: Counter[str] = Counter()
    for node, count in tokens.items():
        held = registrations.get(node)
        totals[held.wallet if held and held.wallet else node] += count
    return totals
