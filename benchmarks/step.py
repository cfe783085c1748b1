"""Where a step's wall time goes on a real network: generate, verify, broadcast, train, wait.

Runs a testnet and reads its nodes' event files. Besides the split it gives the three times that INTELLECT-2 reports for
its run (section 4.1): broadcast of a checkpoint, first rollout file after it, full verified batch; and the ratio of
training to inference FLOPs (2 per parameter and token generated, 6 per parameter and token trained on, 2 more for the
recomputed log-probabilities). The paper has 14 min, 10 min, 22 min and about 1 : 4.5 for a 32B model over the internet.

python -m benchmarks.step [--quick] [--steps N] [--workers N] [--validators N] [--relays N] [--draft FILE]
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import safe_open

from benchmarks.command import count, existing_file, finish, run, run_to_the_end
from node.base_model import default_model
from node.testnet.events import EventTail

Event = dict[str, Any]
FLOPS_GENERATED, FLOPS_PREFILLED, FLOPS_TRAINED = 2, 2, 8
"""FLOPs per parameter and token: one forward pass; the validators' prefill; old
log-probabilities plus forward and backward."""


@dataclass(frozen=True, slots=True)
class Said:
    """Events of all nodes, by role."""

    by_role: dict[str, list[Event]]

    def of(self, role: str, event: str) -> list[Event]:
        """All events of this name, in order of time."""
        return sorted((e for e in self.by_role[role] if e["event"] == event), key=lambda e: float(e["ts"]))


def read_events(directory: Path) -> Said:
    """All events of a testnet's nodes."""
    by_role: defaultdict[str, list[Event]] = defaultdict(list)
    for path in directory.glob("*/events.jsonl"):
        for event in EventTail(path).read():
            by_role[path.parent.name.partition("-")[0]].append({**event, "who": path.parent.name})
    return Said(by_role)


def median(values: Iterable[float]) -> float:
    """Median; 0 for no values."""
    kept = list(values)
    return statistics.median(kept) if kept else 0.0


def measure(said: Said, *, parameters: int, validators: int) -> dict[str, float]:
    """The figures, in seconds except for counts and ratios. Medians over the steps after the first."""
    opened = {e["step"]: e["ts"] for e in said.of("trainer", "step.opened")}
    closed = {e["step"]: e["ts"] for e in said.of("trainer", "batch.closed")}
    trained = {e["step"]: e for e in said.of("trainer", "step.trained")}
    published = [e for e in said.of("trainer", "checkpoint.published") if "bytes" in e and e["step"] > 0]
    steps = sorted(step for step in trained if step > 1)
    gaps = [trained[step]["ts"] - trained[step - 1]["ts"] for step in steps if step - 1 in trained]
    tokens_trained = sum(e.get("tokens", 0) for e in trained.values())
    generated = said.of("worker", "submission.made")
    tokens_generated = sum(e["tokens"] for e in generated)
    training = FLOPS_TRAINED * tokens_trained
    inference = FLOPS_GENERATED * tokens_generated
    return {
        "steps": len(trained),
        "step_seconds": median(gaps),
        "train_seconds": median(trained[s]["timeline"].get("train", 0.0) for s in steps),
        "save_seconds": median(trained[s]["timeline"].get("save", 0.0) for s in steps),
        "wait_for_batch_seconds": median(trained[s]["timeline"].get("collect", 0.0) for s in steps),
        "wait_for_commit_seconds": median(trained[s]["timeline"].get("gate", 0.0) for s in steps),
        "generate_seconds": median(_between(said)),
        "verify_seconds": median(e["seconds"] for e in said.of("validator", "verdict.signed") if "seconds" in e),
        "publish_seconds": median(e["seconds"] for e in published),
        "broadcast_seconds": median(_broadcasts(said)),
        "first_file_seconds": median(_first_files(said)),
        "full_batch_seconds": median(closed[s] - opened[s] for s in steps if s in closed and s in opened),
        "loop_lag_p99_seconds": max((e["loop_lag_p99"] for e in _stops(said)), default=0.0),
        "tokens_trained": tokens_trained,
        "tokens_generated": tokens_generated,
        "train_flops": float(training * parameters),
        "inference_flops": float(inference * parameters),
        "verification_flops": float(FLOPS_PREFILLED * tokens_generated * validators * parameters),
        "inference_per_training": inference / training if training else 0.0,
    }


def _stops(said: Said) -> list[Event]:
    return [event for role in said.by_role for event in said.of(role, "node.stopped")]


def _between(said: Said) -> list[float]:
    """Seconds from one submission to the next by the same worker in the same step: sampling, proofs, file."""
    last: dict[tuple[str, int], float] = {}
    spans = []
    for event in said.of("worker", "submission.made"):
        key = (event["who"], event["step"])
        if key in last:
            spans.append(event["ts"] - last[key])
        last[key] = event["ts"]
    return spans


def _broadcasts(said: Said) -> list[float]:
    """Seconds from a trained checkpoint to the last worker that fetched it."""
    made = {e["step"]: e["ts"] for e in said.of("trainer", "step.trained")}
    fetched: defaultdict[int, list[float]] = defaultdict(list)
    for event in said.of("worker", "weights.fetched"):
        fetched[event["policy_step"]].append(event["ts"])
    return [max(times) - made[step] for step, times in fetched.items() if step in made]


def _first_files(said: Said) -> list[float]:
    """Seconds from a trained checkpoint to the first rollouts made with it."""
    made = {e["step"]: e["ts"] for e in said.of("trainer", "step.trained")}
    first: dict[int, float] = {}
    for event in said.of("worker", "submission.sent"):
        first.setdefault(event["policy_step"], event["ts"])
    return [time - made[step] for step, time in first.items() if step in made]


def count_parameters(model: Path) -> int:
    """Number of parameters in a model's safetensors."""
    total = 0
    for path in model.glob("*.safetensors"):
        with safe_open(path, framework="numpy") as file:
            for name in file.keys():
                count = 1
                for size in file.get_slice(name).get_shape():
                    count *= size
                total += count
    return total


TABLE = (
    ("a step, from one update to the next", "step_seconds"),
    ("  train: log-probabilities and updates", "train_seconds"),
    ("  save: weights, state, manifest to disk", "save_seconds"),
    ("  wait for a full batch", "wait_for_batch_seconds"),
    ("  wait for a commit (too many under way)", "wait_for_commit_seconds"),
    ("generate: one submission of one worker", "generate_seconds"),
    ("verify: one submission, seen to signed", "verify_seconds"),
    ("publish: a checkpoint onto the relays", "publish_seconds"),
    ("broadcast: trained to the last worker's disk", "broadcast_seconds"),
    ("first file made with a new checkpoint", "first_file_seconds"),
    ("full verified batch, from the step's opening", "full_batch_seconds"),
    ("event loop's lateness, p99 of the worst node", "loop_lag_p99_seconds"),
)


def run_testnet(directory: Path, options: argparse.Namespace) -> None:
    """A testnet to its end. Raises BenchmarkError with its last words printed."""
    command = [sys.executable, "-m", "node", "testnet", "--plain", "--dir", str(directory)]
    for name in ("steps", "workers", "validators", "relays"):
        command += [f"--{name}", str(getattr(options, name))]
    if options.draft:
        command += ["--spec", str(options.draft)]
    run_to_the_end(command)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, print the table, print the JSON line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.step", description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="a small network and few steps")
    parser.add_argument("--steps", type=count)
    parser.add_argument("--workers", type=count)
    parser.add_argument("--validators", type=count)
    parser.add_argument("--relays", type=count)
    parser.add_argument("--draft", type=existing_file, help="the run's settings, instead of the built-in ones")
    options = parser.parse_args(arguments)
    defaults = {"steps": 6, "workers": 1, "validators": 1, "relays": 1} if options.quick else {}
    for name, value in ({"steps": 20, "workers": 2, "validators": 3, "relays": 2} | defaults).items():
        setattr(options, name, getattr(options, name) or value)
    directory = Path(tempfile.mkdtemp(prefix="intellect-benchmark-")) / "net"
    try:
        run_testnet(directory, options)
        parameters = count_parameters(default_model())
        figures = measure(read_events(directory), parameters=parameters, validators=options.validators)
    finally:
        shutil.rmtree(directory.parent, ignore_errors=True)
    print(f"\n{'medians over the steps after the first':46} seconds")
    for text, name in TABLE:
        print(f"{text:46} {figures[name]:7.3f}")
    ratio = figures["inference_per_training"]
    print(
        f"{'training : inference FLOPs':46} 1 : {ratio:.2f}  (verification on top: {figures['verification_flops']:.3g})"
    )
    finish("step", parameters=parameters, **{name: round(value, 4) for name, value in figures.items()})
    return 0


if __name__ == "__main__":
    run(main)
