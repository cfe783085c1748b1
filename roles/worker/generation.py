"""Makes one submission: assigned prompts, seeded sampling, rewards, TOPLOC proofs, the Parquet blob. Blocking, no I/O.

Called only in the compute thread. Everything sampled follows from the ticket's seed, so a validator can repeat it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from dht.encoding import encode, sha256
from dht.envelope import body_digest
from roles.assignment import GroupAssignment, assigned_groups
from roles.inference.engine import Engine, Request, SamplingSettings
from roles.messages import Submission
from roles.rollouts.schema import RolloutFile, RolloutRow, write_rollouts
from roles.spec import RunSpec
from roles.tasks.length import LengthTask
from roles.tasks.task import Task, Undecided
from roles.toploc.encoding import ENCODINGS
from roles.toploc.proof import build_proofs
from roles.turns.spans import own_count
from roles.turns.speaking import Spoken, speak
from roles.turns.tool import load_tool_use


@dataclass(frozen=True, slots=True)
class Ticket:
    """An index to work on: its assignment seed and the digest of the preceding submission."""

    step: int
    index: int
    seed: str
    predecessor: str


@dataclass(frozen=True, slots=True)
class HeldPolicy:
    """A committed checkpoint on this disk, verified."""

    step: int
    manifest: str
    path: Path


@dataclass(frozen=True, slots=True)
class Made:
    """A finished submission and its blob; `reward` is the mean over its completions."""

    submission: Submission
    digest: str
    blob: bytes
    reward: float


def submission_digest(submission: Submission) -> str:
    """The digest that the submission's row will have."""
    return body_digest(submission.run, submission.kind, encode(submission))


class Generator:
    """Makes one node's submissions with one engine. The constructor raises TaskError when the run's
    tool is not available here."""

    def __init__(self, spec: RunSpec, *, node: str, engine: Engine, task: Task) -> None:
        self._spec, self._run, self._node = spec, spec.run_id, node
        self._engine, self._task = engine, LengthTask(task, spec.length)
        self._settings, self._use = SamplingSettings.from_spec(spec.sampling), load_tool_use(spec.tool)
        self.loaded: HeldPolicy | None = None

    def load(self, policy: HeldPolicy) -> None:
        """Load new weights. Raises BadCheckpoint and then keeps the old weights."""
        self._engine.load(policy.path)
        self.loaded = policy

    def make(self, ticket: Ticket) -> Made:
        """Sample, score, prove and pack one index with the loaded weights."""
        policy = self.loaded
        if policy is None:
            raise ValueError("load a checkpoint first")
        groups = self._assigned(ticket)
        prompts = [self._engine.encode(self._task.prompt(group.problem, group.target)) for group in groups]
        requests = [
            Request(prompt, seed) for prompt, group in zip(prompts, groups, strict=True) for seed in group.seeds
        ]
        completions = speak(self._engine, requests, self._settings, self._use)
        return self._pack(ticket, policy, self._rows(groups, requests, completions))

    def _assigned(self, ticket: Ticket) -> tuple[GroupAssignment, ...]:
        sampling = self._spec.sampling
        return assigned_groups(
            ticket.seed,
            problems=self._task.task.size,
            groups=sampling.groups_per_submission,
            group_size=sampling.group_size,
            targets=self._task.targets,
        )

    def _rows(
        self, groups: tuple[GroupAssignment, ...], requests: list[Request], completions: list[Spoken]
    ) -> tuple[RolloutRow, ...]:
        checks, encoding = self._spec.checks, ENCODINGS[self._spec.model.dtype]
        states = [item.states for item in completions]
        proofs = build_proofs(states, encoding=encoding, topk=checks.topk, chunk=checks.chunk)
        owners = [group for group in groups for _ in group.seeds]
        return tuple(
            RolloutRow(
                group=group.group,
                problem_id=group.problem,
                prompt=request.prompt,
                output=completion.tokens,
                reward=self._reward(group, completion),
                target_length=group.target,
                seed=request.seed,
                temperature=self._settings.temperature,
                finish=completion.finish,
                proof=proof,
                output_logprobs=completion.logprobs,
                turns=completion.turns,
            )
            for group, request, completion, proof in zip(owners, requests, completions, proofs, strict=True)
        )

    def _reward(self, group: GroupAssignment, said: Spoken) -> float:
        """The reward of a completion; 0 when the scorer does not finish in time."""
        length = own_count(said.turns, len(said.tokens))
        try:
            return self._task.reward(group.problem, group.target, self._engine.decode(said.tokens), length=length)
        except Undecided:
            return 0.0

    def _pack(self, ticket: Ticket, policy: HeldPolicy, rows: tuple[RolloutRow, ...]) -> Made:
        file = RolloutFile(
            run=self._run,
            node=self._node,
            step=ticket.step,
            policy=policy.manifest,
            policy_step=policy.step,
            index=ticket.index,
            rows=rows,
        )
        blob = write_rollouts(file)
        submission = Submission(
            run=self._run,
            node=self._node,
            step=ticket.step,
            index=ticket.index,
            policy_step=policy.step,
            policy=policy.manifest,
            predecessor=ticket.predecessor,
            blob=sha256(blob),
            size=len(blob),
            groups=self._spec.sampling.groups_per_submission,
            completions=len(rows),
            tokens=sum(own_count(row.turns, len(row.output)) for row in rows),
        )
        reward = sum(row.reward for row in rows) / len(rows)
        return Made(submission, submission_digest(submission), blob, reward)
