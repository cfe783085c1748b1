"""Looks at the ledger and the DHT, feeds what it finds to the trusted state, and wakes the actor. Decides nothing.

Rows that are ignored for now (a gap, an unknown block) are kept, bounded, and offered again at every look.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence

import structlog

from dht.envelope import Envelope
from dht.errors import PeerError, TransportError
from ledger.errors import LedgerError
from roles.messages import head_key, submissions_key, verdicts_key
from roles.ports import Directory, Ledger
from roles.rules import Ignore, Reason, Refusal, Reject
from roles.spec import RunSpec
from roles.trusted import LedgerView, TrustedState

log = structlog.get_logger()

MAX_PENDING = 20_000
"""Rows waiting for something; the oldest are forgotten first (they are still in the DHT)."""
MAX_SEEN = 200_000
REJECTED: tuple[type[Exception], ...] = (PeerError, Reject)


class Watch:
    """One waiter's view of an observer: no change between two waits is missed, however many others wait too."""

    def __init__(self, observer: Observer) -> None:
        self._observer = observer
        self._seen = -1  # so the first wait returns at once: whatever stands then is new to this waiter

    async def changed(self, timeout: float = 5.0) -> None:
        """Wait until something is new since the last call, or the timeout passed."""
        try:
            async with asyncio.timeout(timeout):
                while self._seen == self._observer.version:
                    await self._observer.next_change()
        except TimeoutError:
            return
        self._seen = self._observer.version


class Observer:
    """Keeps a `TrustedState` current. `rejected` is told of rows whose signer is at fault at the gate."""

    def __init__(
        self,
        *,
        spec: RunSpec,
        trusted: TrustedState,
        directory: Directory,
        ledger: Ledger,
        interval: float = 0.25,
        watch_rollouts: bool = True,
        rejected: Callable[[Envelope, Reject], None] | None = None,
    ) -> None:
        self.spec = spec
        self.trusted = trusted
        self.interval = interval
        self.ledger_down: str | None = None
        self.directory_down: str | None = None
        self.ignored: dict[Reason, int] = {}
        self.extra_steps: set[int] = set()  # steps beyond the open window that an actor still wants read
        self._directory = directory
        self._ledger = ledger
        self._watch_rollouts = watch_rollouts
        self._rejected = rejected or (lambda row, refusal: None)
        self.version = 0  # counts changes
        self.steps_read: frozenset[int] = frozenset()  # steps whose rows the last look that succeeded has read
        self._changed = asyncio.Event()
        self._own_watch = Watch(self)
        self._seen: OrderedDict[tuple[str, str, int], None] = OrderedDict()
        self._pending: OrderedDict[tuple[str, str, int], Envelope] = OrderedDict()
        self._beacons: dict[str, str] = {}

    async def run(self) -> None:
        """Look every `interval` seconds, for ever."""
        while True:
            await self.look()
            await asyncio.sleep(self.interval)

    async def changed(self, timeout: float = 5.0) -> None:
        """Wait until a look found something new, or the timeout passed. For one waiter; several take a `watch` each."""
        await self._own_watch.changed(timeout)

    def listen(self, rejected: Callable[[Envelope, Reject], None]) -> None:
        """Tell this function of rows whose signer is at fault at the gate."""
        self._rejected = rejected

    async def read_rows(self, keys: Sequence[str]) -> list[Envelope]:
        """Rows under keys that no look covers; none when the directory does not answer."""
        try:
            async with asyncio.timeout(15):
                found = await self._directory.read(keys)
        except (TransportError, TimeoutError) as error:
            self._note_down("directory", str(error) or "no answer in time")
            return []
        return [row for key in keys for row in found.get(key, ())]

    def watch(self) -> Watch:
        """A waiter of its own."""
        return Watch(self)

    async def next_change(self) -> None:
        """Wait for the next change, whatever came before."""
        await self._changed.wait()

    def wake(self) -> None:
        """Wake the actor though nothing came from outside."""
        self.version += 1
        self._changed.set()
        self._changed = asyncio.Event()

    async def look(self) -> None:
        """One look at ledger and directory. Failures are remembered and logged once, never raised."""
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
            return False
        self._note_up("ledger")
        return moved

    async def _read_view(self) -> LedgerView:
        async with asyncio.timeout(15):
            head = await self._ledger.head()
            if self.trusted.view is not None and head == self.trusted.view.head:
                return self.trusted.view
            terms = await self._ledger.terms()
            registrations = await self._ledger.registrations()
            commits = {commit.step: commit for commit in await self._ledger.commits()}
            await self._read_beacons({node: item.first_block for node, item in registrations.items()}, head.number)
        return LedgerView(terms, head, commits, registrations, dict(self._beacons))

    async def _read_beacons(self, registered: dict[str, int], head: int) -> None:
        for node, first in registered.items():
            number = first + self.spec.epoch.beacon_blocks
            if node not in self._beacons and number <= head:
                block = await self._ledger.block(number)
                if block is not None:
                    self._beacons[node] = block.hash

    # -- directory -----------------------------------------------------------------------------------------------

    def _steps(self) -> list[int]:
        head = self.trusted.head
        if head is None or not self._watch_rollouts:
            return []
        window = range(max(1, head.step - self.spec.training.async_level - 1), head.step + 1)
        return sorted({*window, *self.extra_steps})

    def _keys(self, steps: Sequence[int]) -> list[str]:
        run, buckets = self.trusted.run, range(self.spec.buckets)
        keys = [head_key(run)]
        for step in steps:
            keys += [submissions_key(run, step, bucket) for bucket in buckets]
            keys += [verdicts_key(run, step, bucket) for bucket in buckets]
        return keys

    async def _look_at_directory(self) -> bool:
        try:
            async with asyncio.timeout(15):
                steps = self._steps()
                found = await self._directory.read(self._keys(steps))
        except (TransportError, TimeoutError) as error:
            self._note_down("directory", str(error) or "no answer in time")
            return False
        self._note_up("directory")
        self.steps_read = frozenset(steps)
        rows = [row for key in sorted(found, key=_gate_order) for row in found[key]]
        return self.offer(rows)

    def offer(self, rows: Iterable[Envelope]) -> bool:
        """Offer rows from any source to the trusted state; whether anything was admitted."""
        fresh = [row for row in rows if _identity(row) not in self._seen]
        waiting = list(self._pending.values())
        fresh_ids = {_identity(row) for row in fresh}
        queue = sorted([*(r for r in waiting if _identity(r) not in fresh_ids), *fresh], key=_admission_order)
        admitted = [self._admit(row) for row in queue]  # a list: every row is offered, not only up to the first success
        return any(admitted)

    def _admit(self, row: Envelope) -> bool:
        identity = _identity(row)
        try:
            self._admit_kind(row)
        except Ignore as ignored:
            self._keep(row, ignored)
            return False
        except REJECTED as error:
            self._remember(identity)
            if isinstance(error, Reject):
                self._rejected(row, error)
            log.info("row.refused", kind=row.kind, signer=row.signer, why=str(error))
            return isinstance(error, Reject)
        self._remember(identity)
        return True

    def _admit_kind(self, row: Envelope) -> None:
        match row.kind:
            case "head/1":
                self.trusted.admit_head(row)
            case "submission/1":
                self.trusted.admit_submission(row)
            case "verdict/1":
                self.trusted.admit_verdict(row)

    def _keep(self, row: Envelope, ignored: Refusal) -> None:
        self.ignored[ignored.reason] = self.ignored.get(ignored.reason, 0) + 1
        if ignored.reason is Reason.LATE:
            self._remember(_identity(row))
            return
        self._pending[_identity(row)] = row
        while len(self._pending) > MAX_PENDING:
            self._pending.popitem(last=False)

    def _remember(self, identity: tuple[str, str, int]) -> None:
        self._pending.pop(identity, None)
        self._seen[identity] = None
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


def _gate_order(key: str) -> int:
    return 0 if key.endswith("/head") else 1


def _admission_order(row: Envelope) -> tuple[int, str]:
    """Heads first (they open steps), then submissions in order of their index (each needs its predecessor), then verdicts."""
    rank: Sequence[str] = ("head/1", "submission/1", "verdict/1")
    index = row.subkey.rpartition(":")[2].zfill(9) if row.kind == "submission/1" else ""
    return (rank.index(row.kind) if row.kind in rank else len(rank), index)
