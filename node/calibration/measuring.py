"""Turns the command line of `calibrate` into objects, and runs the collection."""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from dht.encoding import digest, encode
from node.calibration.collecting import Collector, Kept, Plan
from node.calibration.environments import Environment, environments_for
from node.data_sets import place_data_set
from node.engines import build_engine
from node.errors import ConfigError
from node.evaluation.setting import weights_digest
from node.run_creation import read_draft
from node.terminal import Terminal
from roles.inference.engine import Engine
from roles.inference.errors import BadCheckpoint, InferenceError
from roles.spec import RunSpec
from roles.tasks import Task, TaskError, load_tasks
from roles.tasks.length import LengthTask
from roles.toploc.encoding import ENCODINGS


def plan_of(options: argparse.Namespace, spec: RunSpec) -> Plan:
    """The collection plan. Raises ConfigError."""
    parts = (spec.model, *spec.tasks, spec.sampling, *([spec.length] if spec.length else []))
    weights, checks = weights_digest(options.checkpoint.expanduser()), spec.checks
    name = digest("calibration/1", weights, *map(encode, parts), checks.topk, checks.chunk, options.seed)
    task = LengthTask(_task(options, spec), spec.length)
    return Plan(name, spec.sampling, checks, task, options.submissions, options.seed)


def collect(
    options: argparse.Namespace, spec: RunSpec, plan: Plan, kept: Kept, environments: Sequence[Environment]
) -> None:
    """Generate what is missing, and report progress on standard error. Blocking."""
    screen, total = Terminal(sys.stderr), plan.submissions * len(environments)

    def said(name: str, done: int, left: float) -> None:
        bar = "#" * round(26 * done / max(total, done, 1))
        ahead = f", {left:.0f} s left" if left else ""
        screen.progress(f"calibrate [{bar:.<26}] {done} of {total} submissions, {name}{ahead}")

    pinned = environments_for(spec.model, rows=1)[0]
    collector = Collector(
        plan=plan,
        kept=kept,
        build=lambda environment: _engine(options, spec, environment),
        validator=_engine(options, spec, pinned),
        pinned=pinned.build,
        dtype=ENCODINGS[spec.model.dtype].dtype,
        said=said,
    )
    collector.collect(environments)
    screen.line(f"{total} submissions measured")


def _task(options: argparse.Namespace, spec: RunSpec) -> Task:
    with tempfile.TemporaryDirectory() as folder:  # the task is read completely and does not need its file afterwards
        for task in read_draft(options.spec).get("tasks", []):
            if "file" in task:
                place_data_set(Path(str(task["file"])), Path(folder))
        try:
            return load_tasks(spec.tasks, Path(folder))
        except TaskError as error:
            raise ConfigError(str(error)) from error


def _engine(options: argparse.Namespace, spec: RunSpec, environment: Environment) -> Engine:
    try:
        engine = build_engine(
            options.device,
            dtype=environment.dtype,
            attention=environment.attention,
            chat=spec.model.chat,
            engine=environment.engine,
            gpu_share=0.45,  # leave memory for the engines of the other environments
        )
        engine.load(options.checkpoint.expanduser())
    except (BadCheckpoint, InferenceError) as error:
        raise ConfigError(str(error)) from error
    return engine
