"""The learner for a node with several devices: separate processes under torchrun, watched from here.

When a rank dies, torchrun ends the others within seconds, and the pending call raises the rank's last output. What was
saved before remains; a new group resumes from it.
"""

from __future__ import annotations

import atexit
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from dht.errors import NodeError
from roles.rl.batch import TrainingGroup
from roles.rl.calls import REFUSALS, step_call
from roles.rl.metrics import StepMetrics
from roles.rl.pipe import LOOK_SECONDS, PipeClosed, receive, send
from roles.rl.rank import JOB
from roles.rl.settings import GrpoSettings
from roles.rl.sharded import whole_state

END_SECONDS = 20.0
"""How long the ranks may take to end once the node dismisses them."""
LAST_BYTES = 4000
_NOISE = ("[W", "W1", "E1", "Traceback", "  ", "torch.distributed.elastic", "=====", "-----", "[")


class RankFailed(NodeError):
    """A rank of the learner has died, or none could be started; `said` is its last output."""

    def __init__(self, said: str, sentence: str) -> None:
        """Keep the rank's last output besides the message."""
        super().__init__(sentence)
        self.said = said


class RankedLearner:
    """`Learner` over `ranks` processes. They write to `log`, which is overwritten."""

    def __init__(
        self,
        base: Path,
        settings: GrpoSettings,
        *,
        ranks: int,
        log: Path,
        device: str = "cpu",
        threads: int = 0,
        checkpoints: Path | None = None,
    ) -> None:
        """Start the ranks and wait until they have loaded. Raises RankFailed."""
        self._last_step, self._log = 0, log
        self._folder = Path(tempfile.mkdtemp(prefix="intellect-ranks-"))  # short: a socket's name has 108 bytes
        self._closed = False
        atexit.register(self.close)
        job = {
            "node": os.getpid(),
            "base": str(base),
            "settings": asdict(settings),
            "socket": str(self._folder / "node"),
            "threads": threads,
            "device": device,
            "checkpoints": str(checkpoints) if checkpoints else "",
        }
        with socket.socket(socket.AF_UNIX) as door:
            door.bind(str(job["socket"]))
            door.listen(1)
            self._process = self._start(ranks, job)
            self._connection = self._answer(door)
        self._hear()

    def _start(self, ranks: int, job: Mapping[str, Any]) -> subprocess.Popen[bytes]:
        self._log.parent.mkdir(parents=True, exist_ok=True)
        launcher = [
            "-m",
            "torch.distributed.run",
            "--standalone",
            "--local-addr",  # otherwise the machine's own name, which may not resolve
            "localhost",
            "--nproc-per-node",
            str(ranks),
            "--max-restarts",
            "0",
        ]
        paths = [str(Path(__file__).parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])]
        environment = {
            **os.environ,
            JOB: json.dumps(job),
            "PYTHONPATH": os.pathsep.join(paths),
            "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", str(job["threads"] or 1)),
        }
        with self._log.open("wb") as log:
            return subprocess.Popen(  # noqa: S603 - our own interpreter and module
                [sys.executable, *launcher, "-m", "roles.rl.rank"],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # the node handles an interrupt from the terminal
            )

    def _answer(self, door: socket.socket) -> socket.socket:
        door.settimeout(LOOK_SECONDS)
        while True:
            try:
                return door.accept()[0]
            except TimeoutError:
                if self._process.poll() is not None:
                    raise self._failed() from None

    # -- the calls of `Learner` -------------------------------------------------------------------------------------

    @property
    def last_step(self) -> int:
        """The rollout step the weights come from; 0 is the base."""
        return self._last_step

    @last_step.setter
    def last_step(self, step: int) -> None:
        if step != self._last_step:
            self._call({"call": "pass_over", "step": step})

    def step(self, groups: Sequence[TrainingGroup], step: int) -> StepMetrics:
        """Make a rollout step on all ranks; see `Learner.step`. Raises RankFailed."""
        return StepMetrics(**self._call(step_call(groups, step)))

    def save_weights(self, folder: Path) -> None:
        """Write a checkpoint; see `Learner.save_weights`. Raises RankFailed."""
        self._call({"call": "save_weights", "folder": str(folder)})

    def save_state(self, folder: Path) -> None:
        """Write each rank's shard; see `Learner.save_state`. Raises RankFailed."""
        self._call({"call": "save_state", "folder": str(folder)})

    def whole_state(self, folder: Path) -> Path:
        """A file with the complete state; see `Learner.whole_state`."""
        return whole_state(folder)

    def load_state(self, folder: Path) -> None:
        """Resume from a state; see `Learner.load_state`. Raises RankFailed."""
        self._call({"call": "load_state", "folder": str(folder)})

    def load_weights(self, folder: Path, *, step: int, keep_moments: bool) -> None:
        """Load a checkpoint's weights; see `Learner.load_weights`. Raises RankFailed."""
        self._call({"call": "load_weights", "folder": str(folder), "step": step, "keep_moments": keep_moments})

    def _call(self, message: Mapping[str, Any]) -> Any:
        if self._closed:
            raise RankFailed(
                "", "the learner's ranks have ended; start the node again, it goes on from what was saved last"
            )
        try:
            send(self._connection, message)
        except PipeClosed:
            raise self._failed() from None
        return self._hear()

    def _hear(self) -> Any:
        try:
            answer = receive(self._connection, alive=lambda: self._process.poll() is None)
        except PipeClosed:
            raise self._failed() from None
        self._last_step = answer.get("last_step", self._last_step)
        if (kind := answer.get("error")) is not None:
            number = answer.get("errno")  # whoever started the node waits for a full disk to be cleared
            raise REFUSALS[kind](*((number, answer["why"]) if number else (answer["why"],)))
        return answer["ok"]

    # -- the end ------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Ask the ranks to end; those that do not are killed."""
        if self._closed:
            return
        self._closed = True
        atexit.unregister(self.close)
        if hasattr(self, "_connection"):
            self._connection.close()  # rank 0 notices and dismisses the others
        if hasattr(self, "_process"):
            self._end()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _end(self, patience: float = END_SECONDS) -> None:
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(patience)
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def _failed(self) -> RankFailed:
        """The error that ended the ranks, after they are gone."""
        self._end()
        said = _last_words(self._log)
        self.close()
        return RankFailed(
            said,
            f"a rank of the learner has died ({said}); the last checkpoint and the state of its step are on the disk, and the "
            f"node goes on from them when it is started again. More: {self._log}",
        )


def _last_words(log: Path) -> str:
    """The line that gives the reason, among those that the launcher adds. WGT-17"""
    with suppress(OSError):
        lines = log.read_bytes()[-LAST_BYTES * 4 :].decode(errors="replace").splitlines()
        own = [line for line in lines if line.startswith("rank ")]
        told = own or [line for line in lines if line.strip() and not line.startswith(_NOISE)]
        signals = [line.strip() for line in lines if "Signal" in line and "received" in line]
        for found in (own, signals, told):
            if found:
                return found[-1].strip()[:300]
    return "it left no word"
