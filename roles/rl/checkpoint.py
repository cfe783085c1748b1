"""Checkpoints on disk: the published weights and the learner's private state.

Both are written under a temporary name, synced and renamed, so that a kill at any moment leaves either the old or the
new one. Only safetensors and JSON are read or written: no pickle, which would execute its author's code.
"""

import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from dht.disk import make_folder, sync, sync_files

STATE_FILE = "state.safetensors"
STATE_FORMAT = "learner/1"
_DISK_SAID = re.compile(r"(?:os error |Os \{ code: )(\d+)")  # the latter: safetensors before 0.6
_COPIED_SUFFIXES = {".json", ".txt", ".model", ".jinja"}  # configuration and tokenizer; never code


class CheckpointError(RuntimeError):
    """A checkpoint or state on disk cannot be read, or does not belong to this model."""


def weight_files(checkpoint: Path) -> tuple[Path, ...]:
    """Return the safetensors files of a checkpoint folder, in name order. Raises CheckpointError when it has none."""
    files = tuple(sorted(checkpoint.glob("*.safetensors")))
    if not files:
        raise CheckpointError(f"{checkpoint} has no .safetensors file")
    return files


def save_checkpoint(target: Path, *, base: Path, weights: Mapping[str, Tensor]) -> None:
    """Write a complete checkpoint folder laid out like `base`: same files, tensor names, shapes and dtypes.

    Equal weights give equal bytes. `weights` may be in another dtype (the learner's fp32) and is rounded to the base's.
    An existing folder of that name is replaced. Raises CheckpointError when a tensor of the base is missing, OSError.
    """
    with _replaced_folder(target) as folder:
        for file in sorted(base.iterdir()):
            if file.suffix in _COPIED_SUFFIXES and file.is_file():
                shutil.copyfile(file, folder / file.name)
        for file in weight_files(base):
            _write(folder / file.name, _like_base(file, weights), {"format": "pt"})


def save_state(folder: Path, tensors: Mapping[str, Tensor], numbers: Mapping[str, int | str]) -> None:
    """Write tensors and numbers as one file, replacing the previous state in one rename. Raises OSError."""
    make_folder(folder)
    temporary = folder / f".{STATE_FILE}.tmp"
    # a single key, because safetensors writes several in no fixed order
    header = {STATE_FORMAT: json.dumps(dict(numbers), sort_keys=True)}
    _write(temporary, {name: tensor.contiguous() for name, tensor in tensors.items()}, header)
    sync(temporary)
    temporary.replace(folder / STATE_FILE)
    sync(folder)


def load_state(folder: Path) -> tuple[dict[str, Tensor], dict[str, int | str]]:
    """Read what `save_state` wrote. Raises CheckpointError when it is missing, damaged or of another version."""
    path = folder / STATE_FILE
    try:
        with safe_open(path, framework="pt") as file:
            header = (file.metadata() or {}).get(STATE_FORMAT, "null")
            tensors = {name: file.get_tensor(name) for name in file.keys()}
        numbers = json.loads(header)
    except (OSError, SafetensorError, ValueError) as error:
        raise CheckpointError(f"cannot read the learner's state {path}: {error}") from error
    if not isinstance(numbers, dict):
        raise CheckpointError(f"{path} is not a learner's state of this version ({STATE_FORMAT})")
    return tensors, numbers


def _write(path: Path, tensors: Mapping[str, Tensor], header: Mapping[str, str]) -> None:
    """Write a safetensors file. A disk error, which the library reports as one of its own, is raised as OSError."""
    try:
        save_file(dict(tensors), path, metadata=dict(header))
    except SafetensorError as error:
        if (said := _DISK_SAID.search(str(error))) is None:
            raise
        number = int(said[1])
        raise OSError(number, os.strerror(number), str(path)) from error


def _like_base(file: Path, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Pick the tensors of one base file from `weights`, in its dtypes. Raises CheckpointError."""
    picked = {}
    with safe_open(file, framework="pt") as base:
        for name in base.keys():
            like = base.get_tensor(name)
            if name not in weights or weights[name].shape != like.shape:
                raise CheckpointError(f"the model has no tensor {name} of shape {tuple(like.shape)} as {file} does")
            picked[name] = weights[name].detach().to("cpu", like.dtype, copy=True).contiguous()
    return picked


@contextmanager
def _replaced_folder(target: Path) -> Iterator[Path]:
    """Yield an empty folder to fill. When the block succeeds, sync it and put it in `target`'s place."""
    temporary, old = target.with_name(f".{target.name}.tmp"), target.with_name(f".{target.name}.old")
    make_folder(target.parent)
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir()
    yield temporary
    sync_files(temporary)
    if target.exists():
        shutil.rmtree(old, ignore_errors=True)
        target.rename(old)
    temporary.rename(target)
    sync(target.parent)
    shutil.rmtree(old, ignore_errors=True)
