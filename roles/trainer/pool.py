"""Accepted groups waiting to be trained on. Their blobs are fetched concurrently, checked again, and
kept in order of acceptance.

A quorum's ACCEPT is trusted for what only validators check; digest, schema, identity and counts are also checked here.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

import structlog

from dht.errors import Malformed, PeerError, TransportError
from roles.assignment import policy_window
from roles.fetching import Fetches
from roles.observer import Observer
from roles.ports import Relays
from roles.rl.batch import TrainingGroup, is_usable
from roles.rollouts.limits import rollout_limits
from roles.rollouts.schema import RolloutFile, RolloutRow, read_rollouts
from roles.spec import RunSpec
from roles.trainer.closing import PooledGroup
from roles.trusted import AdmittedSubmission, TrustedState

log = structlog.get_logger()

RETRY_SECONDS = 2.0
HELD_UP_SECONDS = 15.0
"""How long a blob being fetched may delay those accepted after it; the relay that has it may be the worker's own."""
RECENT_GROUPS = 256
"""Number of recent groups in the estimate of the usable fraction."""


@dataclass(slots=True)
class _Entry:
    item: AdmittedSubmission
    groups: tuple[PooledGroup, ...] = ()
    tries: int = 0
    is_fetching: bool = False
    is_done: bool = False
    due: float = field(default=0.0)
    since: float = 0.0  # when it was queued


def split_groups(file: RolloutFile, item: AdmittedSubmission, spec: RunSpec) -> tuple[PooledGroup, ...]:
    """The groups in the file. Raises Malformed unless the file belongs to the submission."""
    submission = item.submission
    said = (submission.run, submission.node, submission.step, submission.policy, submission.policy_step)
    if (file.run, file.node, file.step, file.policy, file.policy_step) != said or file.index != submission.index:
        raise Malformed("the blob is of another submission")
    if len(file.rows) != submission.completions:
        raise Malformed("the blob has another number of completions than the submission says")
    size = spec.sampling.group_size
    parts = [file.rows[start : start + size] for start in range(0, len(file.rows), size)]
    return tuple(_pooled(number, rows, item) for number, rows in enumerate(parts))


def _pooled(number: int, rows: tuple[RolloutRow, ...], item: AdmittedSubmission) -> PooledGroup:
    if {row.group for row in rows} != {number} or len({(row.problem_id, row.prompt) for row in rows}) != 1:
        raise Malformed("the rows of a group do not stand together")
    told = tuple(row.output_logprobs for row in rows if row.output_logprobs)
    training = TrainingGroup(
        prompt=rows[0].prompt,
        completions=tuple(row.output for row in rows),
        rewards=tuple(row.reward for row in rows),
        policy_step=item.submission.policy_step,
        submission=item.digest,
        turns=tuple(row.turns for row in rows) if rows[0].turns else (),
        reported=told if len(told) == len(rows) else (),
    )
    return PooledGroup(item.digest, number, training)


class Pool:
    """Holds groups of submissions whose policy the open step may use. `used` are the places of groups already used."""

    def __init__(
        self,
        *,
        trusted: TrustedState,
        observer: Observer,
        relays: Relays,
        vocabulary: int,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._spec, self._trusted, self._observer = trusted.spec, trusted, observer
        self._limits = rollout_limits(trusted.spec, vocabulary)
        self._entries: dict[str, _Entry] = {}  # in order of acceptance
        self._monotonic = monotonic
        self._since: dict[str, float] = {}  # when submissions waiting for audits were accepted
        self._used: dict[tuple[str, int], int] = {}  # place -> step that used it
        self._recent: deque[bool] = deque(maxlen=RECENT_GROUPS)
        self._blobs = Fetches(relays)
        self._watch = observer.watch()

    async def run(self) -> None:
        """Fetch the blobs of accepted submissions until cancelled."""
        loop = asyncio.get_running_loop()
        async with asyncio.TaskGroup() as group:
            while True:
                self.take_accepted()
                for entry in self._entries.values():
                    if not entry.is_done and not entry.is_fetching and entry.due <= loop.time():
                        entry.is_fetching = True
                        group.create_task(self._fetch(entry))
                await self._watch.changed(RETRY_SECONDS)

    def take_accepted(self) -> None:
        """Queue submissions that a quorum has accepted since the last call and that got no
        fault within the audit window."""
        oldest, window = self._oldest_policy(), self._spec.checks.audit_window
        accepted = {item.digest: item for item in self._trusted.accepted() if item.submission.policy_step >= oldest}
        self._since = {digest: self._since.get(digest, self._monotonic()) for digest in accepted} if window else {}
        for digest, item in accepted.items():
            if digest not in self._entries and (not window or self._monotonic() >= self._since[digest] + window):
                self._entries[digest] = _Entry(item, since=self._monotonic())

    def groups(self, step: int) -> Iterator[PooledGroup]:
        """Unused groups that the step may train on, in order of acceptance. A blob being fetched holds
        up later ones for a while."""
        held_up = self._monotonic() - HELD_UP_SECONDS
        window = policy_window(step, self._spec.training.async_level)
        for entry in self._entries.values():
            if entry.item.submission.policy_step not in window:
                continue
            if not entry.is_done and entry.tries == 0 and entry.since > held_up:
                return  # later ones must not overtake it
            yield from (group for group in entry.groups if group.place not in self._used)

    def mark_used(self, places: Iterable[tuple[str, int]], step: int) -> None:
        """Record that the groups at those places (submission, number) are in the batch of a step."""
        self._used.update(dict.fromkeys(places, step))

    def forget_before(self, step: int) -> None:
        """Drop what step `step` and later ones cannot train on."""
        oldest = policy_window(step, self._spec.training.async_level)[0]
        for digest in [d for d, e in self._entries.items() if e.item.submission.policy_step < oldest]:
            self._blobs.forget(self._entries.pop(digest).item)
        # A group's submission belongs to a step at most async_level + 1 above its policy.
        reach = step - 2 * (self._spec.training.async_level + 1)
        self._used = {place: used for place, used in self._used.items() if used >= reach}

    @property
    def recent(self) -> tuple[int, int]:
        """(usable, all) among the groups fetched lately; usable ones teach something."""
        return sum(self._recent), len(self._recent)

    def is_here(self, digest: str) -> bool:
        """Whether the submission's blob was fetched or refused."""
        entry = self._entries.get(digest)
        return entry is not None and entry.is_done

    def _oldest_policy(self) -> int:
        head = self._trusted.head
        return policy_window(head.step, self._spec.training.async_level)[0] if head and head.step else 0

    async def _fetch(self, entry: _Entry) -> None:
        try:
            entry.groups = await self._read(entry.item)
            entry.is_done = True
            self._recent.extend(is_usable(group.training) for group in entry.groups)
        except (TransportError, TimeoutError) as error:
            entry.due = asyncio.get_running_loop().time() + RETRY_SECONDS * (entry.tries + 1)
            self._say(entry, "blob.missing", str(error) or "no answer in time")
        except PeerError as error:  # TRN-06: a bad file is skipped
            entry.is_done = True
            self._say(entry, "blob.refused", str(error))
        finally:
            entry.tries += 1
            entry.is_fetching = False
            if entry.item.digest not in self._entries:  # dropped meanwhile
                self._blobs.forget(entry.item)
        self._observer.wake()

    async def _read(self, item: AdmittedSubmission) -> tuple[PooledGroup, ...]:
        submission = item.submission
        newest = self._trusted.submissions.get(item.digest, item)  # a newer row may name other relays
        data = await self._blobs.get(newest, limit=submission.size)
        file = await asyncio.to_thread(read_rollouts, data, self._limits)
        return split_groups(file, item, self._spec)

    def _say(self, entry: _Entry, event: str, why: str) -> None:
        submission = entry.item.submission
        log.warning(event, node=submission.node, step=submission.step, index=submission.index, why=why)
