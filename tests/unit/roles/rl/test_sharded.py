"""The learner's sharded state: the current one stays complete until the next one is."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
import torch

from roles.rl.checkpoint import load_state
from roles.rl.ranks import Ranks
from roles.rl.sharded import POINTER, fill_from_shards, save_shards

ALONE = Ranks(rank=0, world=1, device=torch.device("cpu"), mesh=None)


def save(folder: Path, value: float) -> None:
    save_shards(folder, {"weight": torch.full((4,), value)}, {"step": 1, "updates": 1}, ranks=ALONE)


def held(folder: Path) -> list[float]:
    tensors = {"weight": torch.zeros(4)}
    fill_from_shards(folder, str(load_state(folder)[1][POINTER]), tensors)
    return tensors["weight"].tolist()


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_save_shards__of_a_step_that_was_saved_before_takes_its_place_when_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(source: object, target: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    save(tmp_path, 1.0)
    with monkeypatch.context() as patched:
        patched.setattr(os, "rename", full)
        with pytest.raises(OSError, match="No space"):
            save(tmp_path, 2.0)
    assert held(tmp_path) == [1.0] * 4
    save(tmp_path, 2.0)
    assert held(tmp_path) == [2.0] * 4
    assert len(list(tmp_path.glob("shards-*"))) == 1
