"""Observations on disk: one JSON line per group of a class, append-only. What is stored is not made again."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from node.errors import ConfigError
from roles.toploc.observation import Observation


@dataclass(frozen=True, slots=True)
class Record:
    """One group of one class, as a validator observed it. `kl`: mean over tokens, in nats, from the right policy to the
    one that generated them; `seconds`: time to generate and observe it."""

    name: str
    group: int
    observation: Observation
    kl: float
    seconds: tuple[float, float]


class Store:
    """The records of one set-up (model, sampling, shape of groups), identified by `tag`. Only
    one process at a time may add."""

    def __init__(self, folder: Path, tag: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / f"observations-{tag}.jsonl"
        self.records: dict[tuple[str, int], Record] = {}
        self._load()

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Open the file for adding. Raises ConfigError when another process is adding.
        Removes a line that a kill cut off."""
        with self.path.with_suffix(".lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                raise ConfigError(f"another process is adding to {self.path}") from error
            whole = self._load()
            if self.path.exists():
                os.truncate(self.path, whole)
            yield

    def groups(self, name: str) -> list[Record]:
        """Records of a class, in order of their groups."""
        return [record for (own, _), record in sorted(self.records.items()) if own == name]

    def add(self, records: Iterable[Record]) -> None:
        """Append records durably."""
        new = list(records)
        with self.path.open("ab") as file:
            for record in new:
                plain = asdict(record) | {"observation": record.observation.to_plain()}
                file.write(json.dumps(plain, separators=(",", ":")).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())
        self.records |= {(record.name, record.group): record for record in new}

    def _load(self) -> int:
        """Load the complete lines. Returns their length in bytes."""
        if not self.path.exists():
            return 0
        whole = self.path.read_bytes().rpartition(b"\n")
        for line in whole[0].splitlines():
            record = _read(json.loads(line))
            self.records[(record.name, record.group)] = record
        return len(whole[0]) + len(whole[1])


def _read(plain: dict[str, Any]) -> Record:
    observation = Observation.from_plain(plain["observation"])
    return Record(plain["name"], plain["group"], observation, plain["kl"], (plain["seconds"][0], plain["seconds"][1]))
