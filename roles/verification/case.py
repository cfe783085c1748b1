"""One submission under judgement: what it claims, and what is recomputed for it, each at
most once and only on demand."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch

from roles.assignment import assigned_groups
from roles.inference.engine import Engine, Prefill
from roles.inference.sampling import SamplingSettings
from roles.messages import JoinedStatistics, Statistics, Submission
from roles.rollouts.errors import MalformedRollouts
from roles.rollouts.limits import rollout_limits
from roles.rollouts.schema import RolloutFile, RolloutLimits, RolloutRow
from roles.rules import Reason, Reject
from roles.spec import RunSpec
from roles.tasks import Task
from roles.tasks.length import LengthTask
from roles.toploc.joined import Calibration, Score, score
from roles.toploc.observation import Observation
from roles.toploc.readings import Readings, Sampled, read_tokens
from roles.toploc.sampling_check import Margins
from roles.toploc.verify import ProofStatistics
from roles.turns.spans import own_spans, own_tokens, turn_seed
from roles.turns.tool import ToolUse
from roles.verification.duplicates import DuplicateIndex, Place, Sketch, sketch_of

Reader = Callable[[bytes, RolloutLimits], RolloutFile]
MAX_FIGURE = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Expected:
    """What one row of the file must contain, by the assignment."""

    group: int
    problem: int
    seed: int
    target: int | None


@dataclass(frozen=True, slots=True)
class Means:
    """Everything a verifier needs besides the submission."""

    spec: RunSpec
    engine: Engine
    task: Task
    duplicates: DuplicateIndex
    read: Reader
    use: ToolUse | None = None
    calibration: Calibration | None = None
    secret: bytes = b""  # key of the completions' sketches
    monotonic: Callable[[], float] = time.monotonic

    @property
    def length_task(self) -> LengthTask:
        """The task under the run's length rule."""
        return LengthTask(self.task, self.spec.length)

    def limits(self) -> RolloutLimits:
        """Bounds of an honest file."""
        return rollout_limits(self.spec, self.engine.vocabulary)


class Case:
    """A submission, its blob, and what the checks share, computed lazily: the parsed file, the
    assignment, one packed prefill."""

    def __init__(self, submission: Submission, seed: str, data: bytes, means: Means) -> None:
        self.submission = submission
        self.data = data
        self.means = means
        self.proof_statistics: ProofStatistics | None = None
        self.chunks: list[list[ProofStatistics]] | None = None
        self._seed = seed

    @property
    def place(self) -> Place:
        """Node, step and index."""
        return self.submission.node, self.submission.step, self.submission.index

    @cached_property
    def settings(self) -> SamplingSettings:
        """Sampling of the run."""
        return SamplingSettings.from_spec(self.means.spec.sampling)

    @cached_property
    def file(self) -> RolloutFile:
        """The parsed blob. Raises Reject for bytes that are not a rollout file."""
        try:
            return self.means.read(self.data, self.means.limits())
        except MalformedRollouts as error:
            raise Reject(Reason.SCHEMA, str(error)[:200]) from error

    @cached_property
    def expected(self) -> tuple[Expected, ...]:
        """What each row must contain, recomputed from the assignment's seed and never read from the file."""
        sampling = self.means.spec.sampling
        groups = assigned_groups(
            self._seed,
            problems=self.means.task.size,
            groups=sampling.groups_per_submission,
            group_size=sampling.group_size,
            targets=self.means.length_task.targets,
        )
        return tuple(Expected(item.group, item.problem, seed, item.target) for item in groups for seed in item.seeds)

    @cached_property
    def own(self) -> list[tuple[int, ...]]:
        """For each row, the tokens that the policy produced, without a tool's."""
        return [own_tokens(row.output, row.turns) for row in self.file.rows]

    @cached_property
    def prefill(self) -> list[Prefill]:
        """The validator's own states and logits of the policy's tokens in each row, from one packed pass. Prompts and
        tool answers have been checked by then."""
        rows = self.file.rows
        whole = self.means.engine.prefill([(row.prompt, row.output) for row in rows])
        return [_own_prefill(item, row) for item, row in zip(whole, rows, strict=True)]

    @cached_property
    def readings(self) -> list[Readings]:
        """What this policy's logits say of each of its tokens in each row."""
        sampled = [_sampled(row) for row in self.file.rows]
        return read_tokens(self.prefill, sampled, self.settings, vocabulary=self.means.engine.vocabulary)

    @cached_property
    def margins(self) -> list[Margins]:
        """For each row and each of the policy's tokens, by how much it misses being the seeded choice."""
        return [item.margins for item in self.readings]

    @cached_property
    def score(self) -> Score | None:
        """How much all measurements deviate together; None if the run does not ask, or no proof was examined."""
        calibration = self.means.calibration
        if calibration is None or self.chunks is None:
            return None
        chunk = self.means.spec.checks.chunk
        return score(Observation(tuple(map(tuple, self.chunks)), tuple(self.margins), chunk), calibration)

    @cached_property
    def sequences(self) -> tuple[str, ...]:
        """Each completion in the form the index of duplicates stores."""
        return tuple(sketch.text for sketch in self.sketches)

    @cached_property
    def sketches(self) -> list[Sketch]:
        """The sketch of each completion (`roles.verification.duplicates`), which recognises full and partial copies."""
        return [sketch_of(tokens, self.means.secret) for tokens in self.own]

    def statistics(self) -> Statistics | None:
        """What has been measured so far; None when no proof was examined."""
        proof = self.proof_statistics
        if proof is None:
            return None
        parts = self.__dict__.get("margins")  # only if a check has already computed them
        joined = np.concatenate(parts) if parts else np.zeros(1)
        means = [float(np.minimum(part, 5.0).mean()) for part in parts or () if len(part)]
        return Statistics(
            exponent_mismatches=proof.exponent_mismatches,
            mantissa_mean=thousandths(proof.mantissa_mean),
            mantissa_median=thousandths(proof.mantissa_median),
            margin_mean=thousandths(max(means, default=0.0)),
            tokens_exact=thousandths(float((joined <= 0).mean())) if parts else 0,
            joined=_joined_statistics(self.__dict__.get("score")),
        )


def _joined_statistics(found: Score | None) -> JoinedStatistics | None:
    if found is None:
        return None
    exponents, mantissas, margins = map(thousandths, found.ratios)
    rarity = thousandths(-math.log10(found.p))
    return JoinedStatistics(rarity=rarity, exponents=exponents, mantissas=mantissas, margins=margins)


def _own_prefill(whole: Prefill, row: RolloutRow) -> Prefill:
    if len(row.turns) < 2:
        return whole
    spans = own_spans(row.turns, len(row.output))
    return Prefill(torch.cat([whole.states[start:end] for start, end in spans]), whole.head)


def _sampled(row: RolloutRow) -> Sampled:
    """The policy's tokens. Each turn was sampled with a seed of its own, from position 0."""
    spans = [range(end - start) for start, end in own_spans(row.turns, len(row.output))]
    return Sampled(
        tokens=own_tokens(row.output, row.turns),
        seeds=[turn_seed(row.seed, turn) for turn, span in enumerate(spans) for _ in span],
        positions=[position for span in spans for position in span],
    )


def thousandths(value: float) -> int:
    """A value in thousandths, rounded, capped at the largest number that a message may hold."""
    return min(round(value * 1000), MAX_FIGURE) if value < 2**60 else MAX_FIGURE
