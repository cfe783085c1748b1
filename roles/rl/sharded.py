"""The learner's state of several ranks: each writes what it holds, and any number of ranks reads it again.

PyTorch's distributed checkpoints (DCP) in their safetensors form: offsets stand in the files' headers, and nothing is pickled.
The shards lie in a folder of their own beside the state file, which names it: so the state changes in one rename.
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
"""Folder within it, for the other trainers: a state put together."""


def save_shards(folder: Path, tensors: Mapping[str, Tensor], numbers: Mapping[str, int | str], *, ranks: Ranks) -> None:
    """Write this rank's part of the state; every rank calls it. The state before stays until all of them have. Raises OSError
    on every rank where one of them cannot write, so that all go on."""
    name = f"shards-{numbers['step']}-{numbers['updates']}"
    temporary = folder / f".{name}.tmp"
    _agree(ranks, lambda: _begin(temporary))
    try:
        save(dict(tensors), storage_writer=HuggingFaceStorageWriter(path=str(temporary), save_distributed=True))
    except CheckpointException as error:  # no `Exception`, and raised on all ranks
        raise _disk_error(error) from error
    _agree(ranks, lambda: _finish(folder, temporary, name, numbers))


def _agree(ranks: Ranks, work: Callable[[], None]) -> None:
    """Rank 0 works; all raise OSError if it could not."""
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
    """What a rank's disk said."""
    for wrapped in error.failures.values():
        if isinstance(wrapped[0], OSError):
            return wrapped[0]
    return OSError(f"a rank cannot write its part of the state: {error}"[:300])


def _begin(temporary: Path) -> None:
    shutil.rmtree(temporary, ignore_errors=True)
    make_folder(temporary)


def _finish(folder: Path, temporary: Path, name: str, numbers: Mapping[str, int | str]) -> None:
    """The state that stands may name shards of the same step: they stay until it names these, whose name is on the disk."""
    name = next(free for n in count() if not (folder / (free := f"{name}-{n}" if n else name)).exists())
    sync_files(temporary)
    temporary.rename(folder / name)
    sync(folder)
    save_state(folder, {}, {**numbers, POINTER: name})
    for other in folder.glob("shards-*"):
        if other.name != name:
            shutil.rmtree(other, ignore_errors=True)


def fill_from_shards(folder: Path, name: str, tensors: dict[str, Tensor]) -> None:
    """Fill tensors, sharded or whole, from the shards of a state. Raises CheckpointError when they are not all there, or of
    other shapes; the tensors are worthless then."""
    try:
        target: dict[str, Any] = dict(tensors)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that there are no ranks here, where there are none
            load(target, storage_reader=HuggingFaceStorageReader(path=str(folder / name)))
    except (CheckpointException, OSError, ValueError, KeyError, RuntimeError) as error:
        said = str(error).strip().splitlines() or [type(error).__name__]
        raise CheckpointError(f"cannot read the learner's state {folder / name}: {said[-1]}") from error


def whole_state(folder: Path) -> Path:
    """A file with all of the state that lies in a folder, put together where that is in shards. Raises CheckpointError."""
    _, numbers = load_state(folder)
    name = numbers.pop(POINTER, None)
    if name is None:
        return folder / STATE_FILE
    whole = folder / str(name) / WHOLE
    save_state(whole, _join(folder / str(name)), numbers)
    return whole / STATE_FILE


def _join(shards: Path) -> dict[str, Tensor]:
    """Put the parts of each tensor together."""
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
