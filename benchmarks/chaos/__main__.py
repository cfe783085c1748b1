"""A network of real processes under random faults; every 15 s or more something is killed, filled, set back or cut off.

scripts/chaos [--minutes M] [--seed N] [--results FILE]

The network first runs undisturbed (the reference), then with faults for M minutes, then undisturbed until what was
accepted is final. Exit status 0 only when it advanced at half its undisturbed speed or more, no accepted
contribution was lost or counted twice, and nothing leaked. The faults follow from the seed. Everything happens on
this machine, in user space.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from benchmarks.chaos.accounts import Accounts, count_again, credited_places
from benchmarks.chaos.faults import play
from benchmarks.chaos.processes import COLUMNS, Holdings, measure
from benchmarks.chaos.schedule import make_schedule
from benchmarks.chaos.stage import Stage, running_stage
from benchmarks.command import finish, run
from benchmarks.command import minutes as a_time
from dht.errors import NodeError
from ledger.errors import LedgerError
from node.health import raise_file_limit
from node.lifetime import adopt_orphans
from node.testnet.plan import TestnetOptions
from node.testnet.processes import processes_of

SIZES = {"workers": 2, "validators": 3, "relays": 2, "trainers": 2, "steps": 100_000}
FIRST_STEP = 4
"""The reference begins when this checkpoint is committed, i.e. after the start-up."""
START_SECONDS = 300.0
SETTLE_SECONDS = 240.0
"""Maximum time after the last fault until everything accepted is final."""
LEAST_SPEED = 0.5
LEAK = 1.5
"""Growth over the resources held at the start that counts as a leak."""
SLACK = {"files": 60, "sockets": 60, "memory": 200 * 2**20}


@dataclass
class Report:
    """The measurements, and the problems found."""

    seed: int
    minutes: float
    faults: int = 0
    reference: float = 0.0  # steps a minute
    disturbed: float = 0.0
    before: Holdings | None = None
    after: Holdings | None = None
    tallies: int = 0
    tokens: int = 0
    messages: dict[str, int] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)


def say(text: str) -> None:
    """Print to the user."""
    sys.stderr.write(f"{time.strftime('%H:%M:%S')} {text}\n")


async def run_all(folder: Path, *, minutes: float, reference: float, seed: int) -> Report:
    """The whole of it."""
    report = Report(seed, minutes)
    draft = folder / "draft.toml"
    draft.write_text(_draft())
    options = TestnetOptions(directory=folder / "net", draft=draft, seed=seed, **SIZES)  # type: ignore[arg-type]
    async with running_stage(options) as stage:
        say(f"{len(stage.plan.nodes)} nodes start" + ("" if stage.has_disks else "; no disks of their own here"))
        await _until(stage, FIRST_STEP, seconds=START_SECONDS)
        report.reference = await _speed(stage, asyncio.sleep(reference * 60))
        report.before = await asyncio.to_thread(measure, stage.leaders, stage.plan.directory)
        say(f"undisturbed: {report.reference:.1f} steps a minute")
        roles = {role: [n.name for n in stage.plan.nodes if n.role == role] for role in _roles(stage)}
        faults = make_schedule(seed, seconds=minutes * 60, roles=roles)
        report.faults = len(faults)
        report.disturbed = await _speed(stage, _at_least(minutes * 60, play(stage, faults, say)))
        say(f"disturbed: {report.disturbed:.1f} steps a minute")
        await _settle(stage, report)
        report.after = await asyncio.to_thread(measure, stage.leaders, stage.plan.directory)
        report.messages = dict(stage.weather.happened)
        report.wrong += stage.ended
        for name, count in stage.counts.most_common(25):
            say(f"  {count:5} {name}")
        await asyncio.to_thread(_keep_logs, stage, folder / "logs")
    _judge(report)
    return report


def _keep_logs(stage: Stage, folder: Path) -> None:
    """Copy the logs from the nodes' own disks, which end with this process."""
    for path in stage.plan.directory.glob("*/*"):
        if path.suffix in (".jsonl", ".log"):
            (folder / path.parent.name).mkdir(parents=True, exist_ok=True)
            shutil.copy(path, folder / path.parent.name)


def _roles(stage: Stage) -> list[str]:
    return list(dict.fromkeys(node.role for node in stage.plan.nodes))


def _draft() -> str:
    """The testnet's own draft, with a policy that hardly learns; one that had learnt everything would end the run."""
    text = (Path(__file__).parents[2] / "node" / "testnet" / "run.toml").read_text()
    return text.replace('learning_rate = "0.0001"', 'learning_rate = "0.00000001"')


async def _until(stage: Stage, step: int, *, seconds: float) -> None:
    async with asyncio.timeout(seconds):
        while stage.step < step:  # noqa: ASYNC110 - nobody tells us
            await asyncio.sleep(0.2)


async def _at_least(seconds: float, work: object) -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(asyncio.sleep(seconds))
        group.create_task(work)  # type: ignore[arg-type]


async def _speed(stage: Stage, work: object) -> float:
    """Steps per minute while this work runs."""
    begun, first = time.monotonic(), stage.step
    await work  # type: ignore[misc]
    return (stage.step - first) / (time.monotonic() - begun) * 60


async def _settle(stage: Stage, report: Report) -> None:
    """Leave the network undisturbed until everything accepted before is final, then recount everything."""
    last, begun = stage.step, time.monotonic()
    expected = [place for place in stage.accepted if place[1] <= last]
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(SETTLE_SECONDS):
            await _until(stage, last + 2, seconds=SETTLE_SECONDS)
            while not await _are_credited(stage, expected):  # noqa: ASYNC110 - nobody tells us
                await asyncio.sleep(5)
    say(f"left alone for {time.monotonic() - begun:.0f} s; step {stage.step}")
    if stage.step < last + 2:
        report.wrong.append(f"nothing goes on: step {last} before, {stage.step} {SETTLE_SECONDS:.0f} s later")
    try:
        accounts = await count_again(stage)
    except (AssertionError, NodeError, LedgerError) as error:
        report.wrong.append(f"counting again failed: {type(error).__name__} {error}")
        return
    _compare(accounts, expected, last, report)


async def _are_credited(stage: Stage, expected: list[tuple[str, int, int]]) -> bool:
    try:
        return set(expected) <= await credited_places(stage)
    except (NodeError, LedgerError) as error:
        say(f"  tallies cannot be read yet: {error}")
        return False


def _compare(accounts: Accounts, expected: list[tuple[str, int, int]], last: int, report: Report) -> None:
    report.tallies, report.tokens = accounts.tallies, sum(accounts.counted.values())
    say(f"{accounts.tallies} tallies, {report.tokens} tokens counted again; {len(expected)} places accepted")
    if not accounts.is_equal:
        report.wrong.append(f"credited is not what was counted: {accounts.credited} and {accounts.counted}")
    if lost := accounts.lost(expected, until=last):
        report.wrong.append(f"{len(lost)} accepted contributions are in no tally: {lost[:5]}")


def _judge(report: Report) -> None:
    if report.disturbed < LEAST_SPEED * report.reference:
        report.wrong.append(f"{report.disturbed:.1f} steps a minute, {report.reference:.1f} undisturbed")
    if report.before is None or report.after is None:
        return
    if report.after.processes != report.before.processes:
        report.wrong.append(f"{report.after.processes} processes, {report.before.processes} at the start")
    for name, slack in SLACK.items():
        before, after = getattr(report.before, name), getattr(report.after, name)
        if after > before * LEAK + slack:
            report.wrong.append(f"{name}: {after}, {before} at the start")
    if report.after.stale_sockets > report.before.stale_sockets:
        report.wrong.append(f"{report.after.stale_sockets} control sockets of dead processes")
    if left := processes_of(os.getpid()):
        report.wrong.append(f"processes left over: {left}")


def _print(report: Report) -> None:
    share = report.disturbed / report.reference if report.reference else 0.0
    print(f"seed {report.seed}: {report.faults} faults in {report.minutes:g} minutes; messages: ", end="")
    print(", ".join(f"{count} {name}" for name, count in sorted(report.messages.items())))
    print(f"speed: {report.disturbed:.1f} steps a minute, {share:.0%} of {report.reference:.1f} undisturbed")
    print(f"counted again: {report.tallies} tallies, {report.tokens} tokens")
    print("| |", " | ".join(COLUMNS), "|")
    for title, holdings in (("start", report.before), ("end", report.after)):
        if holdings is not None:
            print(f"| {title} |", " | ".join(holdings.row()), "|")
    for text in report.wrong:
        print(f"WRONG: {text}")
    print("verdict:", "FAILED" if report.wrong else "passed")


def main(words: Sequence[str] | None = None) -> int:
    """Run, print the results and judge them."""
    parser = argparse.ArgumentParser(prog="chaos", description="A network of real processes under random faults.")
    parser.add_argument("--minutes", type=a_time, default=10.0, help="how long it is disturbed")
    parser.add_argument("--reference", type=a_time, help="minutes it is left alone first (default: a third, 1 to 3)")
    parser.add_argument("--seed", type=int, default=1, help="the faults follow from it")
    parser.add_argument("--results", type=Path, help="JSON lines; a seed that passed there is not run again")
    parser.add_argument("--keep", type=Path, help="folder for the network's files, kept afterwards")
    options = parser.parse_args(words)
    if options.results and _has_passed(options.results, options.seed, options.minutes):
        print(f"seed {options.seed} has passed: see {options.results}")
        return 0
    adopt_orphans()
    raise_file_limit()
    reference = options.reference or min(3.0, max(1.0, options.minutes / 3))
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.keep or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        report = asyncio.run(run_all(folder, minutes=options.minutes, reference=reference, seed=options.seed))
        _print(report)
        finish("chaos", **asdict(report))
        if options.results:
            with options.results.open("a") as file:
                file.write(json.dumps(asdict(report)) + "\n")
    return 1 if report.wrong else 0


def _has_passed(path: Path, seed: int, minutes: float) -> bool:
    lines = path.read_text().splitlines() if path.exists() else []
    done = [json.loads(line) for line in lines]
    return any(item["seed"] == seed and item["minutes"] == minutes and not item["wrong"] for item in done)


if __name__ == "__main__":
    run(main)
