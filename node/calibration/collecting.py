"""Generates the honest submissions that are still missing, and stores the measurements of each on disk."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch

from dht.encoding import digest
from node.calibration.environments import Build, Environment, threads
from node.errors import ConfigError
from node.line_file import LineFile
from roles.assignment import assigned_groups
from roles.inference.engine import Engine, Request, SamplingSettings
from roles.spec import CheckSpec, SamplingSpec
from roles.tasks.length import LengthTask
from roles.toploc.observation import Observation
from roles.toploc.observing import Proven, observe, prove

MAX_LINE = 1 << 24
BLOCK = 4
"""Submissions collected in one environment before switching to the next."""
Builder = Callable[[Environment], Engine]
Said = Callable[[str, int, float], None]


@dataclass(frozen=True, slots=True)
class Plan:
    """What to collect: this many submissions per environment, of the shape given by a run's draft. `name` changes with
    everything that affects the measurements."""

    name: str
    sampling: SamplingSpec
    checks: CheckSpec
    task: LengthTask
    submissions: int
    seed: int

    @property
    def settings(self) -> SamplingSettings:
        """The sampling settings in the form the engine takes."""
        return SamplingSettings.from_spec(self.sampling)

    def requests(self, environment: str, number: int, engine: Engine) -> list[Request]:
        """The rows of one submission, drawn in the same way as a worker's assignment."""
        groups = assigned_groups(
            digest("calibration/1", self.seed, environment, number),
            problems=self.task.task.size,
            groups=self.sampling.groups_per_submission,
            group_size=self.sampling.group_size,
            targets=self.task.targets,
        )
        prompts = [engine.encode(self.task.prompt(group.problem, group.target)) for group in groups]
        return [Request(prompt, seed) for prompt, group in zip(prompts, groups, strict=True) for seed in group.seeds]


class Kept:
    """Observations by environment and number, in a file with one line each. The first line
    names the plan and the device."""

    def __init__(self, path: Path, name: str, device: str | None) -> None:
        """Open or create the file. With `device` None it comes from another machine and is only read. Raises
        ConfigError for a file of another plan or device, or one without observations."""
        self._path, self._name, self._device = path, name, device
        self._file = LineFile(path, longest=MAX_LINE)
        self.table: dict[str, dict[int, Observation]] = {}
        if device is None and not path.exists():
            raise ConfigError(f"there is no file {path}")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            is_begun = self._read()
            if device is not None and is_begun:
                self._file.repair()
            elif device is not None:
                self._file.begin({"calibration": name, "device": device})
        except OSError as error:
            raise ConfigError(f"cannot use {path}: {error.strerror}; name another file by --keep") from error

    def add(self, environment: str, number: int, observation: Observation) -> None:
        """Store an observation; it is on disk when this returns."""
        self._file.append({"environment": environment, "number": number, "observation": observation.to_plain()})
        self.table.setdefault(environment, {})[number] = observation

    def of(self, environment: str, most: int | None = None) -> list[Observation]:
        """Observations of an environment ordered by number, at most `most`."""
        return [observation for _, observation in sorted(self.table.get(environment, {}).items())][:most]

    def _read(self) -> bool:
        """Load what was stored before. Returns whether there was anything, even if only the header."""
        try:
            lines = self._file.read()
            if not lines:
                return False
            header = lines[0]
            if header["calibration"] != self._name or self._device not in (None, header["device"]):
                raise ConfigError(f"{self._path} holds another calibration; delete it or name another file by --keep")
            for kept in lines[1:]:
                own = self.table.setdefault(str(kept["environment"]), {})
                own[int(kept["number"])] = Observation.from_plain(kept["observation"])
        except (ValueError, KeyError, TypeError, IndexError, RecursionError) as error:
            raise ConfigError(f"{self._path} holds no observations; delete it or name another by --keep") from error
        return True


@dataclass(slots=True)
class Collector:
    """Collects a block of submissions in each environment in turn, so that an
    interrupted run has covered all of them."""

    plan: Plan
    kept: Kept
    build: Builder
    validator: Engine
    pinned: Build
    dtype: torch.dtype
    said: Said = lambda name, done, left: None
    _held: tuple[Build, Engine] | None = field(default=None)

    def collect(self, environments: Sequence[Environment]) -> None:
        """Generate what is missing. Blocking, and may take long; can be killed at any moment."""
        began, made = time.monotonic(), 0
        missing = list(self._missing(environments))
        total = sum(len(numbers) for _, numbers in missing)
        for environment, numbers in missing:
            left = (time.monotonic() - began) / made * (total - made) if made else 0.0
            self.said(environment.name, sum(map(len, self.kept.table.values())), left)
            self._make(environment, numbers)
            made += len(numbers)

    def _missing(self, environments: Sequence[Environment]) -> Iterator[tuple[Environment, list[int]]]:
        for start in range(0, self.plan.submissions, BLOCK):
            for environment in environments:
                held = self.kept.table.get(environment.name, {})
                numbers = [n for n in range(start, min(start + BLOCK, self.plan.submissions)) if n not in held]
                if numbers:
                    yield environment, numbers

    def _make(self, environment: Environment, numbers: Sequence[int]) -> None:
        """Generate submissions in batches of the environment's size, storing each batch before the next."""
        size = self.plan.sampling.groups_per_submission * self.plan.sampling.group_size
        together = max(1, environment.rows // size)
        for start in range(0, len(numbers), together):
            some = numbers[start : start + together]
            for number, observed in zip(some, self._observed(environment, some, size), strict=True):
                self.kept.add(environment.name, number, observed)

    def _observed(self, environment: Environment, numbers: Sequence[int], size: int) -> list[Observation]:
        plan, checks = self.plan, self.plan.checks
        engine = self._engine(environment)
        requests = [each for number in numbers for each in plan.requests(environment.name, number, engine)]
        rows = environment.rows or size
        proven: list[Proven] = []
        with threads(environment.threads):
            for start in range(0, len(requests), rows):
                some = requests[start : start + rows]
                proven += prove(engine, some, plan.settings, topk=checks.topk, chunk=checks.chunk, dtype=self.dtype)
        return [
            observe(
                self.validator,
                proven[i * size : (i + 1) * size],
                plan.settings,
                topk=checks.topk,
                chunk=checks.chunk,
            )
            for i in range(len(numbers))
        ]

    def _engine(self, environment: Environment) -> Engine:
        """The validator's own engine if it has the same build; otherwise another, kept
        until a different one is needed."""
        if environment.build == self.pinned:
            return self.validator
        if self._held is None or self._held[0] != environment.build:
            self._held = None  # free its memory before the next one is built
            self._held = environment.build, self.build(environment)
        return self._held[1]
