"""Publishing checkpoints: how they are sent, and how long they stay on the trainer's disk."""

from __future__ import annotations

import asyncio
from pathlib import Path

import torch
from safetensors.torch import save_file

from dht.encoding import ZERO_DIGEST
from dht.memory import MemoryDirectory, MemoryNetwork
from dht.records import Publisher, unix_ms
from ledger.memory import MemoryLedger
from roles.announce import Voice
from roles.messages import ROW_RULES
from roles.observer import Observer
from roles.shardcast.manifest import build_manifest, manifest_digest, seal_manifest
from roles.spec import BroadcastSpec, RunSpec, TrainingSpec
from roles.trainer.deltas import Deltas
from roles.trainer.heads import HeadBoard
from roles.trainer.journal import Journal
from roles.trainer.publication import Publication
from roles.trusted import TrustedState
from tests.builders import TRAINER, TRAINER_OPERATOR, MemoryRelays, make_chain, make_spec

SHARD = 65_536


def make_journal(folder: Path, spec: RunSpec, *, steps: int) -> Journal:
    """Checkpoints that are made and sealed, but not sent yet."""
    journal, parent = Journal(folder), ZERO_DIGEST
    for step in range(steps):
        made = journal.checkpoint(step)
        made.mkdir()
        save_file({"w": torch.full((64,), float(step))}, made / "model.safetensors")
        manifest = build_manifest(made, run=spec.run_id, term=1, step=step, parent=parent, shard_size=SHARD)
        journal.save_manifest(step, seal_manifest(TRAINER, manifest))
        parent = manifest_digest(seal_manifest(TRAINER, manifest))
    return journal


class Scene:
    """A leader that publishes its checkpoints over in-memory parts, and which of them
    were on its disk at each commit."""

    def __init__(self, folder: Path, spec: RunSpec, *, steps: int) -> None:
        self.steps, self.done = steps, asyncio.Event()
        self.kept: dict[int, list[int]] = {}
        self.relays = MemoryRelays()
        self.journal = make_journal(folder, spec, steps=steps)
        trusted = TrustedState(spec)
        ledger = MemoryLedger(make_chain(spec), run=spec.run_id, operator_key=TRAINER_OPERATOR)
        directory = MemoryDirectory(
            MemoryNetwork(
                run=spec.run_id,
                limits={kind: rule.max_bytes for kind, rule in ROW_RULES.items()},
                lifetimes={kind: rule.lifetime for kind, rule in ROW_RULES.items()},
            )
        )
        observer = Observer(trusted=trusted, directory=directory, ledger=ledger)
        voice = Voice(Publisher(TRAINER, directory, run=spec.run_id, state=None), node=TRAINER.node, spec=spec)
        self.publication = Publication(
            term=1,
            trusted=trusted,
            voice=voice,
            ledger=ledger,
            relays=self.relays,
            journal=self.journal,
            heads=HeadBoard(term=1, trusted=trusted, observer=observer, voice=voice, journal=self.journal),
            clock=unix_ms,
            deltas=Deltas(spec, term=1, key=TRAINER, journal=self.journal, folder=folder / "deltas", clock=unix_ms),
            committed=self._note,
        )

    def _note(self, step: int) -> None:
        self.kept[step] = [number for number in range(self.steps) if self.journal.checkpoint(number).exists()]
        if step == self.steps - 1:
            self.done.set()

    async def publish(self) -> None:
        """Publish every checkpoint, until the last is committed."""
        for step in range(self.steps):
            self.publication.publish(step, final=False)
        async with asyncio.timeout(20), asyncio.TaskGroup() as group:
            sending = group.create_task(self.publication.run())
            await self.done.wait()
            sending.cancel()


async def test_run__keeps_every_policy_that_rollouts_may_be_scored_under(tmp_path: Path) -> None:
    scene = Scene(tmp_path, make_spec(training=TrainingSpec(async_level=6)), steps=10)
    await scene.publish()
    assert scene.kept[9] == list(range(1, 10))  # by checkpoint 8's end: 1 to 7 for step 8, 2 to 8 for step 9


async def test_run__anchors_are_sent_whole(tmp_path: Path) -> None:
    scene = Scene(tmp_path, make_spec(broadcast=BroadcastSpec(anchor_every=2)), steps=5)
    await scene.publish()
    assert scene.relays.whole == [True, False, True, False, True]
