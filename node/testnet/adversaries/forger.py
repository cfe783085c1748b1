"""A generator that forges: it makes an honest submission, opens it, changes it, and signs the result."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from dht.encoding import sha256
from roles.inference.engine import Engine, Request
from roles.inference.sampling import SamplingSettings
from roles.rollouts.schema import RolloutFile, RolloutLimits, RolloutRow, read_rollouts, write_rollouts
from roles.spec import RunSpec
from roles.tasks.task import Task, Undecided
from roles.toploc.proof import build_proofs
from roles.worker.generation import Generator, Made, Ticket, submission_digest

Forgery = Callable[["Forger", Ticket], Made]
"""What an adversary makes of a ticket."""


class Forger(Generator):
    """The honest generator, with its result open to changes. `past` is what it has submitted so far."""

    def __init__(self, spec: RunSpec, *, node: str, engine: Engine, task: Task, forgery: Forgery) -> None:
        super().__init__(spec, node=node, engine=engine, task=task)
        self.spec, self.task, self.engine, self.node = spec, task, engine, node
        self.past: list[Made] = []
        self._forgery = forgery

    def make(self, ticket: Ticket) -> Made:
        """The forged submission for a ticket."""
        made = self._forgery(self, ticket)
        self.past = [*self.past[-7:], made]
        return made

    def honest(self, ticket: Ticket) -> Made:
        """What an honest worker would make of it (with this one's engine, whatever that is)."""
        return super().make(ticket)

    def open(self, made: Made) -> RolloutFile:
        """The rollout file of a submission."""
        return read_rollouts(made.blob, RolloutLimits(2**30, 2**16, 2**20, 2**20, self.engine.vocabulary, 2**24))

    def close(self, made: Made, file: RolloutFile, **signed: Any) -> Made:
        """The submission with a changed file. Signed counts match it unless `signed` overrides them."""
        counts = {"tokens": sum(len(row.output) for row in file.rows)}
        return self.sign(made, write_rollouts(file), **(counts | signed))

    def sign(self, made: Made, blob: bytes, **signed: Any) -> Made:
        """The submission with other bytes."""
        changes = {"blob": sha256(blob), "size": len(blob), **signed}
        submission = made.submission.model_copy(update=changes)
        return Made(submission, submission_digest(submission), blob, made.reward)

    def spoil(self, ticket: Ticket, change: Callable[[RolloutRow], RolloutRow]) -> Made:
        """Honest work with every row changed."""
        made = self.honest(ticket)
        file = self.open(made)
        return self.close(made, replace(file, rows=tuple(map(change, file.rows))))

    def resampled(self, rows: Sequence[RolloutRow], seeds: Sequence[int] | None = None) -> list[RolloutRow]:
        """Rows resampled from their prompts with these seeds (default: their own), honestly scored and proven."""
        requests = [Request(row.prompt, seed) for row, seed in zip(rows, seeds or [r.seed for r in rows], strict=True)]
        said = self.engine.generate(requests, SamplingSettings.from_spec(self.spec.sampling))
        checks = self.spec.checks
        proofs = build_proofs([item.states for item in said], topk=checks.topk, chunk=checks.chunk)
        return [
            replace(
                row,
                output=item.tokens,
                finish=item.finish,
                output_logprobs=item.logprobs,
                proof=proof,
                reward=self.score(row, item.tokens),
            )
            for row, item, proof in zip(rows, said, proofs, strict=True)
        ]

    def score(self, row: RolloutRow, tokens: Sequence[int]) -> float:
        """The score that the run's scorer gives these tokens as an answer to the row's problem, in the file's form."""
        text = self.engine.decode(tokens)
        try:
            reward = self._task.reward(row.problem_id, row.target_length, text, length=len(tokens))
        except Undecided:
            return 0.0
        return float(np.float32(reward))

    def prompt(self, problem: int, target: int | None) -> tuple[int, ...]:
        """The tokens of a problem's prompt."""
        return self.engine.encode(self._task.prompt(problem, target))
