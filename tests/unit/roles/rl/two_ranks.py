"""What each rank of the two-rank test runs: a step, saved; another, undone from the state and made again."""

import json
import os
import sys
from dataclasses import asdict
from pathlib import Path

import torch

from roles.rl.follow import LeadingLearner, follow
from roles.rl.settings import GrpoSettings
from tests.unit.roles.rl.groups import make_group
from tests.unit.roles.rl.local_run import POLICY

# three usable groups: 12 rows in two mini-batches, cut by 4 or by 8: the ranks get unequal shares
GROUPS = [
    make_group(),
    make_group(prompt=(5, 12, 7, 20), rewards=(0.0, 1.0, 0.0, 0.0)),
    make_group(prompt=(6, 12, 7, 20), completions=((5, 1), (6, 6, 6, 1), (7,)), rewards=(1.0, 0.0, 0.0)),
    make_group(rewards=(1.0,) * 4),
]
SETTINGS = GrpoSettings(micro_batch=4, warmup_steps=2)


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    if int(os.environ.get("RANK", "0")) > 0:
        follow(POLICY, SETTINGS)
        return
    learner = LeadingLearner(POLICY, SETTINGS)
    learner.step(GROUPS, 1)
    learner.save_state(folder / "state")
    learner.step(GROUPS, 2)
    learner.load_state(folder / "state")
    metrics = learner.step(GROUPS, 2)
    learner.save_weights(folder / "weights")
    (folder / "metrics.json").write_text(json.dumps(asdict(metrics)))
    learner.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
