"""Costs and benefits of asynchrony: the default task at async level 0, 1, 2 and 4, three seeds
each (INTELLECT-2, figure 7).

Each run is a testnet of real processes. Only there do workers, checks, broadcast and training compete for a machine and
wait for each other as in a network; a simulation in one process would share its threads between them. Printed for each
level: reward of the last steps, steps per hour, the trainer's idle share (waiting for a batch or a commit), and the
duration of a step's broadcast and verification. A level hides those durations when the trainer waits for less.

Finished runs are kept in `--results` and not repeated, so an interrupted benchmark resumes where it was.

python -m benchmarks.async_levels [--quick] [--steps N] [--seeds N] [--levels 0,1,2,4] [--results FILE]
"""

from __future__ import annotations

import argparse
import json
import math
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.command import count, finish, run, run_to_the_end
from benchmarks.step import Said, measure, read_events

Row = dict[str, Any]
LEVELS = (0, 1, 2, 4)
NODES = {"workers": 2, "validators": 3, "relays": 2}
LAST_STEPS = 5
NOISE = 2.0
"""Differences of means up to this many standard errors count as noise."""
LEAST_NOISE = 0.03


def run_testnet(directory: Path, *, level: int, seed: int, options: argparse.Namespace) -> float:
    """A testnet to its end; seconds it took. Raises BenchmarkError with its last words printed."""
    draft = directory.parent / "run.toml"
    source = (Path(__file__).parents[1] / "node" / "testnet" / "run.toml").read_text()
    draft.write_text(with_level(source, level=level))
    command = [sys.executable, "-m", "node", "testnet", "--plain", "--dir", str(directory), "--spec", str(draft)]
    for name in ("steps", "workers", "validators", "relays"):
        command += [f"--{name}", str(getattr(options, name))]
    began = time.monotonic()
    run_to_the_end([*command, "--seed", str(seed)])
    return time.monotonic() - began


def with_level(draft: str, *, level: int) -> str:
    """The draft with this async level in place of its own."""
    lines = [line for line in draft.splitlines() if not line.startswith("async_level")]
    if "[training]" in lines:
        lines.insert(lines.index("[training]") + 1, f"async_level = {level}")
    else:
        lines += ["[training]", f"async_level = {level}"]
    return "\n".join(lines) + "\n"


def measure_run(said: Said, *, level: int, seed: int, seconds: float) -> Row:
    """The figures of one run."""
    trained = said.of("trainer", "step.trained")
    times = [event["ts"] for event in trained]
    split = measure(said, parameters=0, validators=1)
    timelines = [event["timeline"] for event in trained if event["step"] > 1]
    waits = [line.get("collect", 0.0) + line.get("gate", 0.0) for line in timelines]
    idle = sum(waits) / sum(sum(line.values()) for line in timelines) if timelines else 0.0
    return {
        "level": level,
        "seed": seed,
        "steps": len(trained),
        "seconds": round(seconds, 1),
        "first_reward": statistics.mean(event["reward"] for event in trained[:LAST_STEPS]),
        "final_reward": statistics.mean(event["reward"] for event in trained[-LAST_STEPS:]),
        "steps_per_hour": 3600 * (len(times) - 1) / (times[-1] - times[0]) if len(times) > 1 else 0.0,
        "idle_share": idle,
        "wait_seconds": statistics.median(waits) if waits else 0.0,
        "train_seconds": split["train_seconds"],
        "broadcast_seconds": split["broadcast_seconds"],
        "verify_seconds": split["verify_seconds"],
        "staleness": statistics.mean(event.get("staleness", 0.0) for event in trained),
        "clipped": statistics.mean(
            sum(event.get(f"clipped_{side}", 0.0) for side in ("low", "high", "delta")) for event in trained
        ),
    }


def summarise(rows: Sequence[Row]) -> list[Row]:
    """Means over the seeds per level, each with its difference from level 0 and what counts as noise."""
    by_level = {level: [row for row in rows if row["level"] == level] for level in sorted({r["level"] for r in rows})}
    base = by_level.get(0, [])
    return [_summary(level, own, base) for level, own in by_level.items()]


def _summary(level: int, own: Sequence[Row], base: Sequence[Row]) -> Row:
    means = {
        key: statistics.mean(row[key] for row in own)
        for key in own[0]
        if key not in ("level", "seed", "steps", "seconds", *NODES)
    }
    hidden = max(0.0, means["broadcast_seconds"] + means["verify_seconds"] - means["wait_seconds"])
    found: Row = {"level": level, "seeds": len(own), **means, "hidden_seconds": hidden}
    if len(base) > 1 and len(own) > 1:  # of a single seed nobody knows the noise
        noise = max(LEAST_NOISE, NOISE * (_error(own) ** 2 + _error(base) ** 2) ** 0.5)
        apart = means["final_reward"] - statistics.mean(row["final_reward"] for row in base)
        found |= {"apart": apart, "noise": noise, "is_within_noise": abs(apart) <= noise or apart > 0}
    return found


def _error(rows: Sequence[Row]) -> float:
    """Standard error of the mean final reward, of two runs or more."""
    rewards = [row["final_reward"] for row in rows]
    return float(statistics.stdev(rewards)) / math.sqrt(len(rewards))


TABLE = (
    ("level", "level", "{:8d}"),
    ("reward", "final_reward", "{:8.3f}"),
    ("steps/h", "steps_per_hour", "{:8.0f}"),
    ("idle", "idle_share", "{:8.1%}"),
    ("wait s", "wait_seconds", "{:8.2f}"),
    ("train s", "train_seconds", "{:8.2f}"),
    ("spread s", "broadcast_seconds", "{:8.2f}"),
    ("verify s", "verify_seconds", "{:8.2f}"),
    ("stale", "staleness", "{:8.2f}"),
    ("clipped", "clipped", "{:8.2%}"),
)


def read_rows(path: Path) -> list[Row]:
    """The results of earlier runs."""
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text().splitlines() if line.strip()]


def level_list(text: str) -> tuple[int, ...]:
    """The argument --levels: levels with commas between."""
    words = text.split(",")
    if not all(word.isdecimal() for word in words):
        raise argparse.ArgumentTypeError(f"{text!r} are not levels with commas between")
    return tuple(map(int, words))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what is missing, print the table and the JSON line. Returns 1 when a level falls behind level 0."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.async_levels", description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="levels 0 and 2, one seed, few steps, a small network")
    parser.add_argument("--steps", type=count)
    parser.add_argument("--seeds", type=count)
    parser.add_argument("--levels", type=level_list, metavar="N,N,..", help="default 0,1,2,4")
    parser.add_argument("--results", type=Path, default=Path("build/async_levels.jsonl"), help="finished runs")
    for name, number in NODES.items():
        parser.add_argument(f"--{name}", type=count, help=f"{number} when not given; 1 with --quick")
    options = parser.parse_args(arguments)
    options.steps = options.steps or (4 if options.quick else 24)
    for name, number in NODES.items():
        setattr(options, name, getattr(options, name) or (1 if options.quick else number))
    seeds = range(1, 1 + (options.seeds or (1 if options.quick else 3)))
    levels = options.levels or ((0, 2) if options.quick else LEVELS)
    options.results.parent.mkdir(parents=True, exist_ok=True)
    done = {(row["level"], row["seed"]): row for row in read_rows(options.results) if is_same(row, options)}
    for seed in seeds:  # level after level within a seed: what disturbs the machine disturbs all of them
        for level in levels:
            if (level, seed) not in done:
                done[level, seed] = one_run(level, seed, options)
                with options.results.open("a") as file:
                    file.write(json.dumps(done[level, seed]) + "\n")
    return report([done[level, seed] for level in levels for seed in seeds])


def is_same(row: Row, options: argparse.Namespace) -> bool:
    """Whether a run was as long as this one's, in as large a network (rows of old do not say)."""
    network = {name: row.get(name, number) for name, number in NODES.items()}
    return row["steps"] == options.steps and all(getattr(options, name) == value for name, value in network.items())


def one_run(level: int, seed: int, options: argparse.Namespace) -> Row:
    """Run one testnet and measure it."""
    directory = Path(tempfile.mkdtemp(prefix="intellect-benchmark-")) / "net"
    try:
        seconds = run_testnet(directory, level=level, seed=seed, options=options)
        found = measure_run(read_events(directory), level=level, seed=seed, seconds=seconds)
        return found | {name: getattr(options, name) for name in NODES}
    finally:
        shutil.rmtree(directory.parent, ignore_errors=True)


def report(rows: Sequence[Row]) -> int:
    """The table by level."""
    levels = summarise(rows)
    print("".join(f"{title:>9}" for title, _, _ in TABLE))
    for row in levels:
        print("".join(f" {shape.format(row[key])}" for _, key, shape in TABLE))
    for row in levels:
        if "apart" in row and row["level"]:
            verdict = "within noise" if row["is_within_noise"] else "BEHIND"
            print(f"level {row['level']}: reward {row['apart']:+.3f} of level 0, noise {row['noise']:.3f}: {verdict}")
        print(f"level {row['level']}: of broadcast and verification {row['hidden_seconds']:.2f} s a step are hidden")
    finish("async_levels", levels=levels, runs=list(rows))
    return 0 if all(row.get("is_within_noise", True) for row in levels) else 1


if __name__ == "__main__":
    run(main)
