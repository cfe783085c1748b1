"""The learner's state from several ranks: each writes its own shard, and any number of ranks can read the state.

Uses PyTorch's distributed checkpoints (DCP) in safetensors form: offsets are in the files' headers, and
nothing is pickled. The shards are in a folder of their own beside the state file, which names it, so the
state changes in one rename.
"""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Callable, Mapping
from itertools import count
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader, HuggingFaceStorageWriter
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from dht.disk import make_folder, sync, sync_files
from roles.rl.checkpoint import STATE_FILE, CheckpointError, load_state, save_state
from roles.rl.ranks import Ranks

POINTER = "sharded"
"""Entry of the state file's numbers that names the folder."""
WHOLE = "whole"
"""Folder within it that holds the combined state for the other trainers."""


def save_shards(folder: Path, tensors: Mapping[str, Tensor], numbers: Mapping[str, int | str], *, ranks: Ranks) -> None:
    """Write this rank's part of the state; every rank must call it. The previous state stays until all ranks have
    written. If one cannot write, all raise OSError, so that all can go on."""
    name = f"shards-{numbers['step']}-{numbers['updates']}"
    temporary = folder / f".{name}.tmp"
    _agree(ranks, lambda: _begin(temporary))
    try:
        save(dict(tensors), storage_writer=HuggingFaceStorageWriter(path=str(temporary), save_distributed=True))
    except CheckpointException as error:  # not an `Exception`, and raised on all ranks
        raise _disk_error(error) from error
    _agree(ranks, lambda: _finish(folder, temporary, name, numbers))


def _agree(ranks: Ranks, work: Callable[[], None]) -> None:
    """Run `work` on rank 0; all ranks raise OSError if it fails."""
    failure: OSError | None = None
    if ranks.writes:
        try:
            work()
        except OSError as error:
            failure = error
    failed = ranks.most(torch.tensor(float(failure is not None), device=ranks.device))
    if failed:
        raise failure or OSError("the leading rank cannot write the state")


def _disk_error(error: CheckpointException) -> OSError:
    """The disk error of the rank that failed."""
    for wrapped in error.failures.values():
        if isinstance(wrapped[0], OSError):
            return wrapped[0]
    return OSError(f"a rank cannot write its part of the state: {error}"[:300])


def _begin(temporary: Path) -> None:
    shutil.rmtree(temporary, ignore_errors=True)
    make_folder(temporary)


def _finish(folder: Path, temporary: Path, name: str, numbers: Mapping[str, int | str]) -> None:
    """Publish the new shards. The current state may name shards of the same step; those stay until the state names
    these, whose folder is synced by then."""
    name = next(free for n in count() if not (folder / (free := f"{name}-{n}" if n else name)).exists())
    sync_files(temporary)
    temporary.rename(folder / name)
    sync(folder)
    save_state(folder, {}, {**numbers, POINTER: name})
    for other in folder.glob("shards-*"):
        if other.name != name:
            shutil.rmtree(other, ignore_errors=True)


def fill_from_shards(folder: Path, name: str, tensors: dict[str, Tensor]) -> None:
    """Fill tensors, sharded or whole, from the shards of a state. Raises CheckpointError when shards are missing or
    have other shapes; the tensors are then unusable."""
    try:
        target: dict[str, Any] = dict(tensors)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about missing ranks, where there are none
            load(target, storage_reader=HuggingFaceStorageReader(path=str(folder / name)))
    except (CheckpointException, OSError, ValueError, KeyError, RuntimeError) as error:
        said = str(error).strip().splitlines() or [type(error).__name__]
        raise CheckpointError(f"cannot read the learner's state {folder / name}: {said[-1]}") from error


def whole_state(folder: Path) -> Path:
    """A file with the complete state stored in a folder, combined from shards if necessary. Raises CheckpointError."""
    _, numbers = load_state(folder)
    name = numbers.pop(POINTER, None)
    if name is None:
        return folder / STATE_FILE
    whole = folder / str(name) / WHOLE
    save_state(whole, _join(folder / str(name)), numbers)
    return whole / STATE_FILE


def _join(shards: Path) -> dict[str, Tensor]:
    """Combine the parts of each tensor."""
    reader = HuggingFaceStorageReader(path=str(shards))
    try:
        metadata = reader.read_metadata()
        whole = {
            name: _empty(entry) for name, entry in metadata.state_dict_metadata.items() if hasattr(entry, "properties")
        }
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        raise CheckpointError(f"cannot read the learner's state {shards}: {error}") from error
    fill_from_shards(shards.parent, shards.name, whole)
    return whole


def _empty(entry: Any) -> Tensor:

    return torch.empty(entry.size, dtype=entry.properties.dtype)
