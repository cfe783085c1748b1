"""What a trainer writes to disk before announcing it: head, closed batches, manifests, checkpoints, learner state.

Writes are atomic, so after a kill at any moment the trainer can resume. Blocking calls.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TypeVar

from dht.disk import make_folder, sync, sync_files, write_durably
from dht.encoding import decode, encode
from dht.envelope import Envelope, from_bytes, to_bytes
from dht.errors import Malformed
from roles.messages import CheckpointManifest, Head, StateRef
from roles.rl.batch import TrainingGroup
from roles.shardcast.manifest import MANIFEST_KIND, MAX_MANIFEST_BYTES
from roles.spec import ModelSpec
from roles.trainer.closing import ClosedBatch, PooledGroup
from roles.trainer.errors import BaseMismatch, StateMissing

T = TypeVar("T")

KEPT_CHECKPOINTS = 5
_BLOCK = 2**20


class Journal:
    """One run's folder. Raises OSError when the disk fails, StateMissing when a file of ours is damaged."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self.learner = root / "learner"
        for name in ("batches", "checkpoints", "manifests"):
            make_folder(root / name)
        for left_over in (root / "checkpoints").glob(".*"):  # of a kill  # CKPT-04
            shutil.rmtree(left_over, ignore_errors=True)

    # -- head ----------------------------------------------------------------------------------------------------

    def head(self) -> Head | None:
        """The last head, if any."""
        path = self._root / "head.json"
        return _read(path, partial(decode, Head))

    def save_head(self, head: Head) -> None:
        """Save the head; call it before announcing it."""
        write_durably(self._root / "head.json", encode(head))

    # -- batches -------------------------------------------------------------------------------------------------

    def batch(self, step: int) -> ClosedBatch | None:
        """The batch of a step, if it was closed."""
        path = self._root / "batches" / f"{step}.json"
        return _read(path, lambda data: _batch_from_plain(json.loads(data)))

    def save_batch(self, batch: ClosedBatch) -> None:
        """Save a closed batch; call it before the head moves past its step. Log-probabilities reported by workers are
        left out, since only an alarm uses them."""
        plain = json.dumps(_batch_to_plain(batch), separators=(",", ":"))
        write_durably(self._root / "batches" / f"{batch.step}.json", plain.encode())

    def batches(self) -> list[ClosedBatch]:
        """All batches still kept, by step."""
        steps = sorted(int(path.stem) for path in (self._root / "batches").glob("*.json"))
        return [batch for step in steps if (batch := self.batch(step))]

    # -- checkpoints ---------------------------------------------------------------------------------------------

    def checkpoint(self, step: int) -> Path:
        """Folder of a checkpoint's files."""
        return self._root / "checkpoints" / str(step)

    def manifest(self, step: int) -> Envelope | None:
        """The manifest sealed for a checkpoint, if there is one."""
        path = self._root / "manifests" / f"{step}.row"
        return _read(path, partial(from_bytes, limit=MAX_MANIFEST_BYTES))

    def save_manifest(self, step: int, row: Envelope) -> None:
        """Save a sealed manifest; call it before sending it. Its existence means that the
        step is never trained again."""
        write_durably(self._root / "manifests" / f"{step}.row", to_bytes(row))

    def copy_base(self, base: Path, model: ModelSpec) -> None:
        """Make checkpoint 0 from exactly the pinned files. Raises BaseMismatch."""
        target = self.checkpoint(0)
        temporary = target.with_name(".base.tmp")
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir()
        for pinned in model.files:
            _copy_checked(base / pinned.name, temporary / pinned.name, size=pinned.size, sha256=pinned.sha256)
        self._place(temporary, target)

    def adopt(self, step: int, folder: Path) -> None:
        """Take over a checkpoint elsewhere on this disk, by hard links, since a checkpoint's files never change.
        Fetched files may not have been synced yet."""
        target = self.checkpoint(step)
        temporary = target.with_name(f".{step}.adopted")
        shutil.rmtree(temporary, ignore_errors=True)
        shutil.copytree(folder, temporary, copy_function=_link, ignore=shutil.ignore_patterns(".*"))
        self._place(temporary, target)

    @staticmethod
    def _place(temporary: Path, target: Path) -> None:
        sync_files(temporary)
        shutil.rmtree(target, ignore_errors=True)
        temporary.rename(target)
        sync(target.parent)

    def forget_after(self, step: int) -> None:
        """Drop the learner's state, everything beyond a step, and that step's batch: another trainer made
        it from groups not known here. The state goes first, so that a kill from here on leaves a folder
        that is simply rebuilt again."""
        for path in self.learner.glob("*.safetensors"):
            path.unlink()
        for name, last in (("manifests", step), ("batches", step - 1), ("checkpoints", step)):
            for path in (self._root / name).iterdir():
                if path.stem.isdigit() and int(path.stem) > last:
                    shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)

    # -- the state for the other trainers --------------------------------------------------------------------------

    def sealed(self, step: int) -> Path:
        """Folder of the encrypted pieces of the state after a step."""
        return self._root / "sealed" / str(step)

    def state_ref(self) -> StateRef | None:
        """The newest sealed trainer state, made here or by an earlier leader."""
        path = self._root / "sealed" / "newest.json"
        return _read(path, partial(decode, StateRef))

    def save_state_ref(self, ref: StateRef | None) -> None:
        """Set the state that manifests name from now on."""
        folder = self._root / "sealed"
        make_folder(folder)
        if ref is None:
            (folder / "newest.json").unlink(missing_ok=True)
        else:
            write_durably(folder / "newest.json", encode(ref))

    def forget_sealed_before(self, step: int) -> None:
        """Drop the pieces of older states, once a newer one is on the relays."""
        for path in (self._root / "sealed").iterdir():
            if path.is_dir() and path.name.isdigit() and int(path.name) < step:
                shutil.rmtree(path, ignore_errors=True)

    def prune(self, *, committed: int, used_from: int, kept: int = KEPT_CHECKPOINTS) -> None:
        """Keep the newest checkpoints, every uncommitted one, and the batches from step `used_from` on."""
        oldest = min(committed + 1 - kept, committed)
        for folder in (self._root / "checkpoints").iterdir():
            if folder.name.isdigit() and int(folder.name) < oldest:  # other names are still being written
                shutil.rmtree(folder, ignore_errors=True)
        for name, first in (("batches", used_from), ("manifests", oldest)):
            for path in (self._root / name).iterdir():
                if path.stem.isdigit() and int(path.stem) < first:
                    path.unlink(missing_ok=True)


def manifest_in(row: Envelope) -> CheckpointManifest:
    """The manifest in a checked row. Raises Malformed."""
    if row.kind != MANIFEST_KIND:
        raise Malformed("not a manifest")
    return decode(CheckpointManifest, row.payload)


def _link(source: str, target: str) -> str:
    try:
        os.link(source, target)
    except OSError:  # some file systems have no links
        shutil.copyfile(source, target)
    return target


def _copy_checked(source: Path, target: Path, *, size: int, sha256: str) -> None:
    digest, copied = hashlib.sha256(), 0
    try:
        with source.open("rb") as reader, target.open("wb") as writer:
            while block := reader.read(_BLOCK):
                digest.update(block)
                copied += writer.write(block)
    except OSError as error:
        raise BaseMismatch(f"cannot read the base model's file {source}: {error.strerror}") from error
    if copied != size or digest.hexdigest() != sha256:
        raise BaseMismatch(f"{source} is not the file the run spec pins (its SHA-256 differs)")


def _batch_to_plain(batch: ClosedBatch) -> dict[str, object]:
    return {
        "step": batch.step,
        "outcome": batch.outcome,
        "rounds": batch.rounds,
        "reward": batch.reward,
        "groups": [
            {
                "submission": group.submission,
                "number": group.number,
                "policy_step": group.training.policy_step,
                "prompt": group.training.prompt,
                "completions": group.training.completions,
                "rewards": group.training.rewards,
                "turns": group.training.turns,
            }
            for group in batch.groups
        ],
    }


def _read(path: Path, parse: Callable[[bytes], T]) -> T | None:
    """Parse one of our files; None when it does not exist. Raises StateMissing for a damaged one."""
    try:
        return parse(path.read_bytes())
    except FileNotFoundError:
        return None
    except (Malformed, ValueError, KeyError, TypeError) as error:
        raise StateMissing(f"{path} is damaged; restore the trainer's folder from a backup") from error


def _batch_from_plain(plain: dict[str, object]) -> ClosedBatch:
    groups = plain["groups"]
    if not isinstance(groups, list):
        raise ValueError("groups is no list")
    return ClosedBatch(
        step=int(str(plain["step"])),
        groups=tuple(_group_from_plain(group) for group in groups),
        outcome=plain["outcome"],  # type: ignore[arg-type]
        rounds=int(str(plain["rounds"])),
        reward=float(str(plain["reward"])),
    )


def _group_from_plain(plain: dict[str, object]) -> PooledGroup:
    training = TrainingGroup(
        prompt=tuple(plain["prompt"]),  # type: ignore[arg-type]
        completions=tuple(tuple(row) for row in plain["completions"]),  # type: ignore[attr-defined]
        rewards=tuple(plain["rewards"]),  # type: ignore[arg-type]
        policy_step=plain["policy_step"],  # type: ignore[arg-type]
        submission=str(plain["submission"]),
        turns=tuple(tuple(row) for row in plain.get("turns", ())),  # type: ignore[attr-defined]
    )
    return PooledGroup(training.submission, int(str(plain["number"])), training)
