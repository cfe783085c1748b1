"""Two CPU ranks under torchrun give the same result as one process; a rank's death is
reported, and a new group continues."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
import torch
from safetensors.torch import load_file

from roles.rl.batch import Row
from roles.rl.checkpoint import STATE_FILE, CheckpointError
from roles.rl.learner import Learner, UnfitGroups
from roles.rl.rank import JOB
from roles.rl.ranked import RankedLearner, RankFailed
from roles.rl.settings import GrpoSettings
from tests.unit.roles.rl.groups import make_group
from tests.unit.roles.rl.local_run import POLICY

ROOT = Path(__file__).parents[4]
# three usable groups: 11 rows in two mini-batches, three in one pass at most: the ranks get unequal shares, and one none at times
GROUPS = [
    make_group(),
    make_group(prompt=(5, 12, 7, 20), rewards=(0.0, 1.0, 0.0, 0.0)),
    make_group(prompt=(6, 12, 7, 20), completions=((5, 1), (6, 6, 6, 1), (7,)), rewards=(1.0, 0.0, 0.0)),
    make_group(rewards=(1.0,) * 4),
]
SETTINGS = GrpoSettings(micro_batch=3, warmup_steps=2)


@contextmanager
def two_ranks(folder: Path, base: Path = POLICY, ranks: int = 2) -> Iterator[RankedLearner]:
    with closing(RankedLearner(base, SETTINGS, ranks=ranks, log=folder / "ranks.log", threads=1)) as learner:
        yield learner


def node_in_a_long_step(folder: Path) -> subprocess.Popen[str]:
    """A process that prints `in a step` and then stays in one for minutes, with a rank of its own."""
    script = f"""
        from pathlib import Path
        from roles.rl.ranked import RankedLearner
        from roles.rl.settings import GrpoSettings
        from tests.unit.roles.rl.groups import make_group

        learner = RankedLearner(Path({str(POLICY)!r}), GrpoSettings(micro_batch=1), ranks=1, log=Path({str(folder / "log")!r}))
        print("in a step", flush=True)
        learner.step([make_group()] * 20_000, 1)
    """
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "ignore"}
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script)], stdout=subprocess.PIPE, text=True, env=environment
    )


def kill_a_follower(learner: RankedLearner) -> None:
    """Kill a follower, as the kernel does when memory runs out."""
    launched = psutil.Process(learner._process.pid).children()
    next(child for child in launched if child.environ().get("RANK") == "1").kill()


@pytest.mark.slow
def test_ranks__agree_with_one_and_a_dead_one_is_told_of_and_resumed__wgt_17(tmp_path: Path) -> None:
    torch.set_num_threads(1)
    one, state = Learner(POLICY, SETTINGS), tmp_path / "state"
    alone = one.step(GROUPS, 1)
    one.save_state(tmp_path / "one")
    with two_ranks(tmp_path) as two:
        together = two.step(GROUPS, 1)
        for name in ("reward", "tokens", "loss", "kl", "entropy", "grad_norm", "ratio_max", "effective_sample"):
            assert getattr(together, name) == pytest.approx(getattr(alone, name), rel=1e-3, abs=1e-6), name
        two.save_state(state)
        ours, theirs = (load_file(path) for path in (tmp_path / "one" / STATE_FILE, two.whole_state(state)))
        assert ours.keys() == theirs.keys()
        for name, tensor in ours.items():
            if name.startswith("exp_avg."):  # the gradients themselves, averaged over the updates
                torch.testing.assert_close(theirs[name], tensor, rtol=1e-3, atol=1e-6, msg=name)
        with pytest.raises(UnfitGroups):  # refused alike by all, who go on
            two.step([make_group(prompt=(5, 99))], 2)
        (tmp_path / "file").touch()
        with pytest.raises(OSError, match="file") as refused:  # the leading rank cannot write, and none waits for it
            two.save_state(tmp_path / "file")
        assert refused.value.errno is not None
        two.step(GROUPS, 2)
        two.save_weights(tmp_path / "a")
        two.last_step = 3  # a saturated round
        assert two.last_step == 3
        kill_a_follower(two)
        with pytest.raises(RankFailed, match="a rank of the learner has died"):
            two.step(GROUPS, 4)
        with pytest.raises(RankFailed, match="have ended"):
            two.save_state(state)
    with two_ranks(tmp_path) as again:
        again.load_state(state)
        assert again.last_step == 1
        again.step(GROUPS, 2)
        again.save_weights(tmp_path / "b")
    assert (tmp_path / "a" / "model.safetensors").read_bytes() == (tmp_path / "b" / "model.safetensors").read_bytes()
    one.load_state(state)  # shards of two, read by one
    assert (one.last_step, one.updates) == (1, 2)
    next((state / "shards-1-2").glob("*.safetensors")).unlink()
    with pytest.raises(CheckpointError, match="cannot read the learner's state"):
        one.load_state(state)
    assert one.last_step == 1


@pytest.mark.slow
def test_ranks__a_model_that_cannot_be_loaded_is_named(tmp_path: Path) -> None:
    with (
        pytest.raises(RankFailed, match=r"PolicyError: .* is not a model checkpoint"),
        two_ranks(tmp_path, tmp_path, ranks=1),
    ):
        raise AssertionError("started")


@pytest.mark.slow
def test_ranks__a_killed_node_takes_them_along_in_the_middle_of_a_step(tmp_path: Path) -> None:
    with node_in_a_long_step(tmp_path) as node:
        assert node.stdout is not None
        assert "in a step" in node.stdout.readline()
        launcher, rank = psutil.Process(node.pid).children(recursive=True)
        folder = Path(json.loads(rank.environ()[JOB])["socket"]).parent
        watches = {os.pidfd_open(process.pid): process for process in (launcher, rank)}
        node.kill()
        left = set(watches)
        while left and (ended := select.select(left, [], [], 10)[0]):
            left.difference_update(ended)
        for watch, process in watches.items():
            if watch in left:
                process.kill()
            os.close(watch)
    assert not left, "the learner outlived its node"
    assert not folder.exists()


def test_plan__no_rank_is_short_of_a_pass() -> None:
    """One row on two ranks: the other rank's pass has no weight."""
    learner = Learner(POLICY, replace(SETTINGS, kl_coef=0.0))
    learner.ranks = replace(learner.ranks, rank=1, world=2)
    (spare,) = learner._plan([one_row()])
    assert spare.batch.mask.sum() == 0


def one_row() -> Row:
    return Row((5, 12), (7, 1), 1.0)
