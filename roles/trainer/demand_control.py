"""Sets the demand of open steps from how many submissions were recently made, judged and found usable."""

from __future__ import annotations

from collections import deque

import structlog

from roles.assignment import policy_window
from roles.messages import SHARE_ALL, OpenStep
from roles.ports import Clock
from roles.rl.batch import is_usable
from roles.trainer.demand import Demand, estimate_usable, open_demand, raised_limit
from roles.trainer.heads import HeadBoard
from roles.trainer.pool import Pool
from roles.trusted import AdmittedSubmission, TrustedState

log = structlog.get_logger()

LEAST_PATIENCE_MS = 10_000
PATIENCE = 3
"""A submission is counted on for this many times the longest recent delay until verdict and blob arrived."""
REMEMBERED = 32


class DemandControl:
    """Decides limit and share of the steps that open, and raises limits. The arithmetic is in `demand`."""

    def __init__(self, *, trusted: TrustedState, pool: Pool, heads: HeadBoard, clock: Clock) -> None:
        self._spec, self._trusted, self._pool, self._heads, self._clock = trusted.spec, trusted, pool, heads, clock
        self._seen_at: dict[str, int] = {}  # submission -> unix ms when it was first seen
        self._quiet_since = ((0, 0, 0), 0)  # (step, limit, submissions) and since when, in unix ms
        self._took: deque[int] = deque(maxlen=REMEMBERED)  # ms from first sight to the blob's arrival

    def first(self, step: int) -> Demand:
        """The demand a step opens with."""
        fraction = self._usable_fraction()
        in_hand = self._usable(step) + self._pending(step) * fraction
        return open_demand(self._spec, workers=len(self._workers()), usable_fraction=fraction, in_hand=in_hand)

    async def for_more(self, step: int) -> None:
        """Raise the limit while the batch is short and some worker has used up the old one.

        Workers look at the head's step. After a lost disk, that step may be later than the one being collected; the
        policies of its groups are usable here as well.
        """
        opened = self._trusted.opened.get(max(step, self._heads.step))
        if opened is None or not self._is_reached(opened):
            return
        usable = self._usable(step)
        limit = raised_limit(
            self._spec,
            Demand(opened.limit, opened.share),
            workers=len(self._workers()),
            usable=usable,
            pending=self._pending(step),
            usable_fraction=self._usable_fraction(),
        )
        if limit > opened.limit:
            log.info("limit.raised", step=opened.step, limit=limit, usable=usable)
            await self._heads.raise_limit(opened.step, limit)

    def _workers(self) -> set[str]:
        """Nodes with an accepted submission in the steps still remembered. A node that submits only junk does not
        count: it would dilute the demand on the others and look like work still to be judged."""
        return {self._trusted.root_of(item.submission.node) for item in self._trusted.accepted()}

    def _nodes(self) -> set[str]:
        """Nodes that have submitted in the steps still remembered."""
        return {self._trusted.root_of(item.submission.node) for item in self._trusted.submissions.values()}

    def _counted(self) -> set[str]:
        """The workers; before there are any, all nodes that submit."""
        return self._workers() or self._nodes()

    def _usable_fraction(self) -> float:
        usable, looked_at = self._pool.recent
        return estimate_usable(usable, looked_at)

    def _usable(self, step: int) -> int:
        return sum(is_usable(group.training) for group in self._pool.groups(step))

    def _is_reached(self, opened: OpenStep) -> bool:
        """Whether a worker has submitted the last index that limit and share allow it, or no worker has one left."""
        nodes = self._counted()
        lasts = [(node, self._trusted.previous_index(node, opened.step, opened.limit)) for node in nodes]
        done = [last is None or bool(self._trusted.known_digests(node, opened.step, last)) for node, last in lasts]
        if any(is_done and last is not None for (_, last), is_done in zip(lasts, done, strict=True)):
            return True
        return opened.share < SHARE_ALL and ((bool(nodes) and all(done)) or self._is_quiet(opened))

    def _is_quiet(self, opened: OpenStep) -> bool:
        """Whether no worker has submitted anything for this step for a while: those that the
        share admits may all be gone."""
        now = self._clock()
        ours = [item for item in self._trusted.submissions.values() if item.submission.step == opened.step]
        nodes = self._counted()
        count = sum(self._trusted.root_of(item.submission.node) in nodes for item in ours)
        if (opened.step, opened.limit, count) != self._quiet_since[0]:
            self._quiet_since = ((opened.step, opened.limit, count), now)
        return now - self._quiet_since[1] > self._patience()

    def _patience(self) -> int:
        """Milliseconds that a submission may take until it is judged and fetched."""
        return max(LEAST_PATIENCE_MS, PATIENCE * max(self._took, default=0))

    def _pending(self, step: int) -> int:
        """Groups submitted lately that the step may use and whose blob is not here yet, because they are not judged or
        are being fetched. Once there are workers, only theirs count."""
        workers = self._counted()
        now, counted = self._clock(), 0
        window = policy_window(step, self._spec.training.async_level)
        patience = self._patience()
        for digest, item in self._trusted.submissions.items():
            if self._pool.is_here(digest):
                if (seen := self._seen_at.pop(digest, None)) is not None:
                    self._took.append(now - seen)
            elif item.submission.policy_step in window and not self._is_refused(item):
                waited = now - self._seen_at.setdefault(digest, now)
                is_counted = waited < patience and self._trusted.root_of(item.submission.node) in workers
                counted += item.submission.groups if is_counted else 0
        self._seen_at = {digest: at for digest, at in self._seen_at.items() if digest in self._trusted.submissions}
        return counted

    def _is_refused(self, item: AdmittedSubmission) -> bool:
        standing = self._trusted.standings.get(item.digest)
        if standing is None:
            return False
        against = standing.count("fault", item.submission) + standing.count("soft", item.submission)
        return against >= self._trusted.quorum
