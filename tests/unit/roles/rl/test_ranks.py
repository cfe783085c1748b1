"""FSDP2 on two CPU ranks gives what one process gives."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from safetensors.torch import load_file

from tests.unit.roles.rl import two_ranks


def launch(command: list[str], folder: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(Path.cwd()), "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, *command, str(folder)], env=environment, capture_output=True, timeout=100)
    assert done.returncode == 0, done.stderr.decode()[-3000:]


@pytest.mark.slow
def test_learner__two_ranks_agree_with_one(tmp_path: Path) -> None:
    script = str(two_ranks.__file__)
    launch([script], tmp_path / "one")
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", script]
    launch(launcher, tmp_path / "two")
    one, two = (load_file(tmp_path / name / "weights" / "model.safetensors") for name in ("one", "two"))
    assert one.keys() == two.keys()
    for name, tensor in one.items():
        # Adam's early steps are near the sign of the gradient: only the few near-zero gradients may differ
        assert (tensor - two[name]).abs().mean() < 2e-6, name
    metrics = [json.loads((tmp_path / name / "metrics.json").read_text()) for name in ("one", "two")]
    for key in ("reward", "tokens", "loss", "kl", "entropy", "grad_norm", "ratio_max"):
        assert metrics[0][key] == pytest.approx(metrics[1][key], rel=1e-3, abs=1e-6), key
