"""Polls the ledger and the DHT, feeds what it finds to the trusted state, and wakes the actor. Decides nothing.

Rows that are ignored for now (a gap, an unknown block) are kept while their key is read, up to a limit per signer. They
are offered again at every look, or in turns when many are waiting.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import structlog

from dht.envelope import Envelope
from dht.errors import PeerError, TransportError
from ledger.errors import LedgerError
from roles.eligibility import bonded_stakes, ejected_nodes
from roles.messages import head_key, seals_key, submissions_key, verdicts_key
from roles.pending_rows import MAX_OF_SIGNER, PendingRows
from roles.ports import Directory, Ledger
from roles.rules import Ignore, Reason, Refusal, Reject
from roles.trusted import LedgerView, TrustedState

log = structlog.get_logger()

MAX_SEEN = 200_000
BURIED_BLOCKS = 2
"""Blocks above a beacon's block before its hash is used; until then the beacon is unknown. The last blocks of a chain
are sometimes replaced, and a node that sampled or judged by a replaced hash would find every submission at fault."""
SETTLED_BLOCKS = 256
"""Blocks above a block before its hash is taken as final; until then a re-organisation may change it."""
ASSUMED_SECONDS = 3600.0
"""How long the last known leader is believed while the ledger is unreachable. What it requests
later may never be paid for."""
REJECTED: tuple[type[Exception], ...] = (PeerError, Reject)


class Watch:
    """One waiter on an observer. It misses no change between two waits, however many other waiters there are."""

    def __init__(self, observer: Observer) -> None:
        self._observer = observer
        self._seen = -1  # so the first wait returns at once: the current state is new to this waiter

    async def changed(self, timeout: float = 5.0) -> None:
        """Wait until something has changed since the last call, or until the timeout."""
        try:
            async with asyncio.timeout(timeout):
                while self._seen == self._observer.version:
                    await self._observer.next_change()
        except TimeoutError:
            return
        self._seen = self._observer.version


class Observer:
    """Keeps a `TrustedState` current by polling every `interval` seconds. `watch` creates a waiter for its changes."""

    def __init__(
        self,
        *,
        trusted: TrustedState,
        directory: Directory,
        ledger: Ledger,
        interval: float = 0.25,
        watch_rollouts: bool = True,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.trusted, self._spec = trusted, trusted.spec
        self.interval = interval
        self.ledger_down: str | None = None
        self.directory_down: str | None = None
        self.ignored: dict[Reason, int] = {}
        self.watch_seals = False  # validators also read seals, in runs that have them
        self.extra_steps: set[int] = set()  # steps beyond the open window that an actor still wants read
        self._directory = directory
        self._ledger = ledger
        self._watch_rollouts = watch_rollouts
        self._rejected: Callable[[Envelope, Reject], None] = lambda row, refusal: None
        self._monotonic = monotonic
        self._heard_at, self._has_assumed = monotonic(), False
        self.version = 0  # counts changes
        self.steps_read: frozenset[int] = frozenset()  # steps whose rows the last successful look has read
        self._changed = asyncio.Event()
        self._seen: OrderedDict[tuple[str, str, int], None] = OrderedDict()
        self.pending = PendingRows()
        self._beacons: dict[int, str] = {}  # hashes of settled blocks that a beacon needs, by number

    async def run(self) -> None:
        """Poll every `interval` seconds until cancelled."""
        while True:
            await self.look()
            await asyncio.sleep(self.interval)

    def listen(self, rejected: Callable[[Envelope, Reject], None]) -> None:
        """Call `rejected` with each row that the gate refused because of a fault of its signer.
        Replaces an earlier listener."""
        self._rejected = rejected

    async def read_rows(self, keys: Sequence[str]) -> list[Envelope]:
        """Rows under keys that polling does not cover; an empty list when the directory does not answer."""
        try:
            async with asyncio.timeout(15):
                found = await self._directory.read(keys)
        except (TransportError, TimeoutError) as error:
            self._note_down("directory", str(error) or "no answer in time")
            return []
        return [row for key in keys for row in found.get(key, ())]

    def watch(self) -> Watch:
        """A new waiter."""
        return Watch(self)

    async def next_change(self) -> None:
        """Wait for the next change, regardless of earlier ones."""
        await self._changed.wait()

    def wake(self) -> None:
        """Wake all waiters although nothing new arrived from outside."""
        self.version += 1
        self._changed.set()
        self._changed = asyncio.Event()

    async def look(self) -> None:
        """Poll the ledger and the directory once. Failures are remembered and logged once, never raised."""
        moved = await self._look_at_ledger()
        if self.trusted.view is not None:
            moved |= await self._look_at_directory()
        if moved:
            self.wake()

    # -- ledger --------------------------------------------------------------------------------------------------

    async def _look_at_ledger(self) -> bool:
        try:
            view = await self._read_view()
            moved = view != self.trusted.view
            self.trusted.admit_view(view)
        except (LedgerError, TimeoutError, Reject) as error:
            self._note_down("ledger", str(error) or "no answer in time")
            self._say_assumed()
            return False
        self._note_up("ledger")
        self._heard_at, self._has_assumed = self._monotonic(), False
        return moved

    async def _read_view(self) -> LedgerView:
        async with asyncio.timeout(15):
            head = await self._ledger.head()
            if self.trusted.view is not None and head == self.trusted.view.head:
                return self.trusted.view
            terms = await self._ledger.terms()
            # before the commits: a new leader must not be shown without its predecessor's last commit
            lease = await self._ledger.lease()
            registrations = await self._ledger.registrations()
            commits = {commit.step: commit for commit in await self._ledger.commits()}
            firsts = {node: item.first_block for node, item in registrations.items()}
            beacons = await self._read_beacons(firsts, head.number)
            ejected = ejected_nodes(await self._ledger.strikes(), registrations)
            stakes = bonded_stakes(await self._ledger.stakes(), registrations)
            judges = await self._ledger.validators_at()
        return LedgerView(terms, head, commits, registrations, beacons, ejected, stakes, lease, judges)

    def _say_assumed(self) -> None:
        """Log once that the last known leader is still believed although its lease may have expired unseen."""
        view, silent = self.trusted.view, self._monotonic() - self._heard_at
        if view is not None and not self._has_assumed and silent > view.terms.lease_seconds:
            self._has_assumed = True
            log.warning("term.assumed", term=self.trusted.term, seconds=round(silent))

    def _is_term_doubtful(self) -> bool:
        return self._monotonic() - self._heard_at > ASSUMED_SECONDS

    async def _read_beacons(self, registered: Mapping[str, int], head: int) -> dict[str, str]:
        """Hash of each node's beacon block, read again until it is settled. With a hash that a re-organised chain has
        dropped, every honest submission of the node would look wrong."""
        needed = {first + self._spec.epoch.beacon_blocks for first in registered.values()}
        hashes = {number: self._beacons[number] for number in needed if number in self._beacons}
        for number in sorted(needed - hashes.keys()):
            block = await self._ledger.block(number) if number + BURIED_BLOCKS <= head else None
            if block is not None:
                hashes[number] = block.hash
        self._beacons = {number: value for number, value in hashes.items() if number <= head - SETTLED_BLOCKS}
        places = {node: first + self._spec.epoch.beacon_blocks for node, first in registered.items()}
        return {node: hashes[number] for node, number in places.items() if number in hashes}

    # -- directory -----------------------------------------------------------------------------------------------

    def _steps(self) -> list[int]:
        head = self.trusted.head
        if head is None or not self._watch_rollouts:
            return []
        window = range(max(1, head.step - self._spec.training.async_level - 1), head.step + 1)
        return sorted({*window, *self.extra_steps})

    def _keys(self, steps: Sequence[int]) -> list[str]:
        run, buckets = self.trusted.run, range(self._spec.buckets)
        keys = [head_key(run)]
        for step in steps:
            keys += [submissions_key(run, step, bucket) for bucket in buckets]
            keys += [verdicts_key(run, step, bucket) for bucket in buckets]
            if self.watch_seals and self._spec.checks.seals:
                keys += [seals_key(run, step, bucket) for bucket in buckets]
        return keys

    async def _look_at_directory(self) -> bool:
        try:
            async with asyncio.timeout(15):
                steps = self._steps()
                keys = self._keys(steps)
                found = await self._directory.read(keys)
        except (TransportError, TimeoutError) as error:
            self._note_down("directory", str(error) or "no answer in time")
            return False
        self._note_up("directory")
        self.steps_read = frozenset(steps)
        self.pending.keep_only(set(keys))
        rows = [row for key in sorted(found, key=_gate_order) for row in found[key]]
        return self.offer(rows)

    def offer(self, rows: Iterable[Envelope]) -> bool:
        """Offer rows from any source to the trusted state. Returns whether any was admitted."""
        fresh = [row for row in rows if _identity(row) not in self._seen and row not in self.pending]
        waiting = self.pending.take_turns({(row.key, row.subkey) for row in fresh})
        queue = _fair(sorted([*waiting, *fresh], key=_admission_order))
        admitted = [self._admit(row) for row in queue]  # a list: every row is offered, not only up to the first success
        return any(admitted)

    def _admit(self, row: Envelope) -> bool:
        try:
            self._admit_kind(row)
        except Ignore as ignored:
            self._keep(row, ignored)
            return False
        except REJECTED as error:
            self._remember(row)
            if isinstance(error, Reject):
                self._rejected(row, error)
            log.info("row.refused", kind=row.kind, signer=row.signer, why=str(error))
            return isinstance(error, Reject)
        self._remember(row)
        return True

    def _admit_kind(self, row: Envelope) -> None:
        match row.kind:
            case "head/1":
                if self._is_term_doubtful():
                    raise Ignore(Reason.TERM_UNKNOWN, "the ledger has not answered for long")
                self.trusted.admit_head(row)
            case "submission/1":
                self.trusted.admit_submission(row)
            case "verdict/2":
                self.trusted.admit_verdict(row)
            case "seal/1":
                self.trusted.admit_seal(row)

    def _keep(self, row: Envelope, ignored: Refusal) -> None:
        self.ignored[ignored.reason] = self.ignored.get(ignored.reason, 0) + 1
        if ignored.reason is Reason.LATE:
            self._remember(row)
        else:
            self.pending.keep(row)

    def _remember(self, row: Envelope) -> None:
        self.pending.drop(row)
        self._seen[_identity(row)] = None
        while len(self._seen) > MAX_SEEN:
            self._seen.popitem(last=False)

    # -- health --------------------------------------------------------------------------------------------------

    def _note_down(self, what: str, why: str) -> None:
        if getattr(self, f"{what}_down") is None:
            log.warning(f"{what}.unreachable", why=why)
        setattr(self, f"{what}_down", why)

    def _note_up(self, what: str) -> None:
        if getattr(self, f"{what}_down") is not None:
            log.info(f"{what}.answered")
        setattr(self, f"{what}_down", None)


def _identity(row: Envelope) -> tuple[str, str, int]:
    return row.key, row.subkey, row.sequence


def _fair(queue: Iterable[Envelope]) -> Iterator[Envelope]:
    """The queue, limited to `MAX_OF_SIGNER` rows per signer."""
    taken: Counter[str] = Counter()
    for row in queue:
        taken[row.signer] += 1
        if taken[row.signer] <= MAX_OF_SIGNER:
            yield row


def _gate_order(key: str) -> int:
    return 0 if key.endswith("/head") else 1


def _admission_order(row: Envelope) -> tuple[int, str]:
    """Heads first (they open steps), then submissions by index (each needs its predecessor), then verdicts."""
    rank: Sequence[str] = ("head/1", "submission/1", "verdict/2")
    index = row.subkey.rpartition(":")[2].zfill(9) if row.kind == "submission/1" else ""
    return (rank.index(row.kind) if row.kind in rank else len(rank), index)
