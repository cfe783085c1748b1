"""One rank of a trainer's learner, as a process under torchrun: `python -m roles.rl.rank`,
started by `roles.rl.ranked`.

Rank 0 takes the node's calls from a local socket and leads the others. When the node ends, so do they.
"""

from __future__ import annotations

import json
import os
import select
import shutil
import socket
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from roles.rl.calls import refusal_of
from roles.rl.follow import dismiss, follow, lead
from roles.rl.learner import Learner
from roles.rl.pipe import PipeClosed, receive, send
from roles.rl.settings import GrpoSettings

AWAKE_SECONDS = 3600.0
JOB = "INTELLECT_LEARNER_JOB"
"""Environment variable with the job as JSON: what to learn, and where the node listens."""


def main() -> None:
    """Learn until the node ends. The error that ends a rank is its last line of output, which the node shows."""
    job = json.loads(os.environ[JOB])
    node, folder = job["node"], Path(job["socket"]).parent
    threading.Thread(target=_end_with, args=(node, folder), name="node-watch", daemon=True).start()
    try:
        _run(job)
    except Exception as error:
        said = str(error).strip().splitlines() or [""]
        print(f"rank {os.environ.get('RANK', '0')}: {type(error).__name__}: {said[0]}", file=sys.stderr, flush=True)  # noqa: T201
        _remove_of_ended(node, folder, seconds=1.0)
        # no orderly exit: the process group may be waiting for us and must notice that we are gone
        os._exit(1)
    _remove_of_ended(node, folder, seconds=1.0)


def _end_with(node: int, folder: Path) -> None:
    """End this rank as soon as the node's process has ended, even during a step. PR_SET_PDEATHSIG would refer to a thread
    of the node, and torchrun is in between. Without pidfds, the closed connection is noticed after the step."""
    if _remove_of_ended(node, folder, seconds=None):
        os._exit(1)


def _remove_of_ended(node: int, folder: Path, *, seconds: float | None) -> bool:
    """Remove the folder of a node that ends within `seconds` (None: wait for it), since the node no longer can: its closed
    connection may be noticed before its end. Returns whether it has ended."""
    try:
        watch = select.poll()
        watch.register(os.pidfd_open(node), select.POLLIN)
        has_ended = bool(watch.poll(None if seconds is None else 1000 * seconds))
    except ProcessLookupError:
        has_ended = True
    except (AttributeError, OSError):
        has_ended = False  # no such call here
    if has_ended:
        shutil.rmtree(folder, ignore_errors=True)
    return has_ended


def _run(job: dict[str, Any]) -> None:
    if job["threads"]:
        torch.set_num_threads(job["threads"])
    learner = Learner(
        Path(job["base"]),
        _read_settings(job["settings"]),
        checkpoints=Path(job["checkpoints"]) if job["checkpoints"] else None,
        device=job["device"],
    )
    if learner.ranks.rank > 0:
        follow(learner)
        return
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(job["socket"])
        send(connection, {"ok": None, "ranks": learner.ranks.world})
        _serve(connection, learner)
    dismiss(learner)


def _serve(connection: socket.socket, learner: Learner) -> None:
    """Execute the node's calls until it is gone."""
    awake = _keep_awake(learner)
    while True:
        try:
            message = receive(connection, alive=awake)
        except PipeClosed:
            return
        try:
            metrics = lead(learner, message)
            answer: dict[str, Any] = {"ok": asdict(metrics) if metrics else None, "last_step": learner.last_step}
        except Exception as error:
            if (kind := refusal_of(error)) is None:
                raise
            number = error.errno if isinstance(error, OSError) else None
            answer = {"error": kind, "why": str(error), "errno": number, "last_step": learner.last_step}
        try:
            send(connection, answer)
        except PipeClosed:
            return


def _keep_awake(learner: Learner) -> Callable[[], bool]:
    """Send the other ranks a call every hour: they give up after a silence of `IDLE_LIMIT`, and a trainer that stands
    by may be silent for weeks."""
    said = time.monotonic()

    def look() -> bool:
        nonlocal said
        if time.monotonic() - said > AWAKE_SECONDS:
            lead(learner, {"call": "pass_over", "step": learner.last_step})
            said = time.monotonic()
        return True

    return look


def _read_settings(fields: dict[str, Any]) -> GrpoSettings:
    return GrpoSettings(**{**fields, "betas": tuple(fields["betas"])})


if __name__ == "__main__":
    main()
