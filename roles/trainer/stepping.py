"""One durable update: GRPO step, weights, optimizer state, sealed manifest. Blocking: for the compute thread.

Order on disk: weights, state (it records which step is made), manifest. After a kill between any two,
`restore` repairs the folder.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Protocol

import structlog

from dht.encoding import ZERO_DIGEST
from dht.identity import NodeKey
from roles.messages import StateRef, UsedGroups
from roles.ports import Clock
from roles.rl.alarms import Alarms
from roles.rl.batch import TrainingGroup
from roles.rl.learner import OutOfMemory, TrainingDiverged, UnfitGroups
from roles.rl.metrics import StepMetrics
from roles.rl.ranked import RankFailed
from roles.shardcast.manifest import build_manifest, choose_shard_size, manifest_digest, seal_manifest
from roles.shardcast.shards import Layout, is_checkpoint_intact
from roles.spec import RunSpec
from roles.trainer.closing import ClosedBatch
from roles.trainer.errors import MemoryShort, StateMissing
from roles.trainer.journal import Journal, manifest_in
from roles.trainer.sealed_state import seal_state

log = structlog.get_logger()

STATE_EVERY = 5
"""Checkpoints between two states sealed for the other trainers; a state is about six times a checkpoint's size."""


class Learner(Protocol):
    """The part of `roles.rl.learner.Learner` that the trainer needs."""

    last_step: int

    def step(self, groups: Sequence[TrainingGroup], step: int) -> StepMetrics: ...

    def save_weights(self, folder: Path) -> None: ...

    def save_state(self, folder: Path) -> None: ...

    def whole_state(self, folder: Path) -> Path: ...

    def load_state(self, folder: Path) -> None: ...

    def load_weights(self, folder: Path, *, step: int, keep_moments: bool) -> None: ...


def used_groups(batch: ClosedBatch | None) -> tuple[UsedGroups, ...]:
    """The groups a batch used up, by submission, in batch order."""
    numbers: dict[str, list[int]] = {}
    for group in batch.groups if batch else ():
        numbers.setdefault(group.submission, []).append(group.number)
    return tuple(UsedGroups(submission=name, groups=tuple(found)) for name, found in numbers.items())


def idle_share(timeline: Mapping[str, float]) -> float:
    """Share of a step's time in which the learner had nothing to do: `{collect 1, gate 1, train 2} -> 0.5`."""
    waited = sum(timeline.get(name, 0.0) for name in ("collect", "gate"))
    worked = sum(timeline.get(name, 0.0) for name in ("train", "save"))
    return waited / (waited + worked) if waited + worked > 0 else 0.0


class Stepper:
    """Makes checkpoints. `made` is the newest one on disk, -1 before checkpoint 0."""

    def __init__(
        self,
        spec: RunSpec,
        *,
        term: int,
        learner: Learner,
        key: NodeKey,
        journal: Journal,
        clock: Clock,
        state_every: int = STATE_EVERY,
    ) -> None:
        self._term, self._state_every = term, state_every
        self._spec, self._learner, self._key, self._journal, self._clock = spec, learner, key, journal, clock
        self._timelines: dict[int, dict[str, float]] = {}
        self._alarms = Alarms()
        self.made = -1

    def timeline(self, step: int) -> dict[str, float]:
        """Seconds spent on each part of a step."""
        return self._timelines.setdefault(step, {})

    def restore(self) -> int:
        """Load the learner's state, seal what a kill left unsealed, and repair what the disk damaged. Returns the
        newest checkpoint made, or -1."""
        if not any(self._journal.learner.glob("*.safetensors")):  # unlike old manifests, this file is never pruned
            return -1
        self._learner.load_state(self._journal.learner)
        self.made = self._learner.last_step
        row = self._journal.manifest(self.made)
        if row is None:
            self._seal(self.made)
        else:
            self._mend(self.made, Layout(manifest_in(row)))
        return self.made

    def _mend(self, step: int, layout: Layout) -> None:
        """Rewrite a checkpoint that the disk has damaged, since no relay would accept it. Raises StateMissing."""
        folder = self._journal.checkpoint(step)
        if is_checkpoint_intact(folder, layout):
            return
        log.warning("checkpoint.damaged", step=step, folder=str(folder))
        if step:  # the state has its weights; those of checkpoint 0 are the base model's files
            self._learner.save_weights(folder)
        if not is_checkpoint_intact(folder, layout):
            raise StateMissing(f"{folder} is damaged; restore the trainer's folder from a backup")

    def prepare_base(self, base: Path) -> None:
        """Make checkpoint 0, the base model byte for byte. Raises BaseMismatch."""
        self._journal.copy_base(base, self._spec.model)
        self._learner.save_state(self._journal.learner)
        self._seal(0)
        self.made = 0

    def make(self, batch: ClosedBatch) -> None:
        """Make the update of a step. It is on disk as a sealed checkpoint when this returns."""
        began = self._clock()
        metrics = None if batch.outcome == "saturated" else self._learn(batch)
        trained = self._clock()
        self._learner.last_step = batch.step
        self._learner.save_weights(self._journal.checkpoint(batch.step))
        self._learner.save_state(self._journal.learner)
        self._seal(batch.step)
        self.made = batch.step
        timeline = self._timelines.pop(batch.step, {})
        timeline |= {"train": (trained - began) / 1000, "save": (self._clock() - trained) / 1000}
        self._say(batch, metrics, timeline)
        if metrics is not None:
            self._warn(metrics)

    def _learn(self, batch: ClosedBatch) -> StepMetrics | None:
        try:
            return self._learner.step([group.training for group in batch.groups], batch.step)
        except TrainingDiverged as error:
            # The previous step's weights are the best available; the run continues with them.
            log.error("step.diverged", step=batch.step, why=str(error))
            self._learner.load_state(self._journal.learner)
        except UnfitGroups as error:  # accepted, but unusable with this model: nothing was changed
            log.error("step.unfit", step=batch.step, why=str(error))
        except OutOfMemory as error:
            raise self._memory_short(batch.step, str(error)) from error
        except RankFailed as error:
            if OutOfMemory.__name__ not in error.said:
                raise
            raise self._memory_short(batch.step, error.said) from error
        return None

    @staticmethod
    def _memory_short(step: int, said: str) -> MemoryShort:
        return MemoryShort(
            f"the update of step {step} does not fit into memory ({said}); checkpoint {step - 1} stays. Give --pass-tokens "
            "less than before, or --checkpoint-activations, or more --ranks, and start the node again"
        )

    def _seal(self, step: int) -> None:
        folder = self._journal.checkpoint(step)
        parent = self._journal.manifest(step - 1) if step else None
        if step and parent is None:
            raise StateMissing(f"the manifest of checkpoint {step - 1} is missing from the trainer's folder")
        total = sum(path.stat().st_size for path in folder.iterdir() if path.is_file())
        manifest = build_manifest(
            folder,
            run=self._spec.run_id,
            term=self._term,
            step=step,
            parent=manifest_digest(parent) if parent else ZERO_DIGEST,
            shard_size=choose_shard_size(total),
        ).model_copy(update={"used": used_groups(self._journal.batch(step)), "state": self._seal_state(step)})
        self._journal.save_manifest(step, seal_manifest(self._key, manifest, now_ms=self._clock()))

    def _seal_state(self, step: int) -> StateRef | None:
        """Periodically encrypt the learner's state to all trainers. Returns the newest sealed state so far."""
        is_saved = any(self._journal.learner.glob("*.safetensors"))
        if step and step % self._state_every == 0 and is_saved:
            trainers = [item.node for item in self._spec.trainers]
            folder, whole = self._journal.sealed(step), self._learner.whole_state(self._journal.learner)
            self._journal.save_state_ref(seal_state(whole, folder, run=self._spec.run_id, step=step, trainers=trainers))
        return self._journal.state_ref()

    def _say(self, batch: ClosedBatch, metrics: StepMetrics | None, timeline: dict[str, float]) -> None:
        fields = asdict(metrics) if metrics else {}
        for name in ("step", "reward", "groups"):  # logged under their own names
            fields.pop(name, None)
        fields["idle_share"] = round(idle_share(timeline), 4)
        log.info("step.trained", step=batch.step, reward=round(batch.reward, 4), timeline=timeline, **fields)

    def _warn(self, metrics: StepMetrics) -> None:
        for alarm in self._alarms.look(metrics):
            log.warning(alarm.event, step=metrics.step, value=round(alarm.value, 4), usual=round(alarm.usual, 4))
        if metrics.unscored:
            log.warning("behaviour.missing", step=metrics.step, completions=metrics.unscored)
