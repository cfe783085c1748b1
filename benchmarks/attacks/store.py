"""Observations on disk: one JSON line for each group of a class, appended, never changed. What is there is not made again."""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from roles.toploc.observation import Observation


@dataclass(frozen=True, slots=True)
class Record:
    """One group of one class, as a validator observed it. `kl`: mean over tokens, nats, from the right policy to the one
    that said them; `seconds`: generating and observing it."""

    name: str
    group: int
    observation: Observation
    kl: float
    seconds: tuple[float, float]


class Store:
    """The records of one setting (model, sampling, shape of groups: `tag` names it)."""

    def __init__(self, folder: Path, tag: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / f"observations-{tag}.jsonl"
        self.records: dict[tuple[str, int], Record] = {}
        self._load()

    def groups(self, name: str) -> list[Record]:
        """Records of a class, in order of their groups."""
        return [record for (own, _), record in sorted(self.records.items()) if own == name]

    def add(self, records: Iterable[Record]) -> None:
        """Append, and see it on disk."""
        new = list(records)
        with self.path.open("ab") as file:
            for record in new:
                plain = asdict(record) | {"observation": record.observation.to_plain()}
                file.write(json.dumps(plain, separators=(",", ":")).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())
        self.records |= {(record.name, record.group): record for record in new}

    def _load(self) -> None:
        """What was written whole; a line cut off by a kill is taken away."""
        if not self.path.exists():
            return
        data = self.path.read_bytes()
        whole = data.rpartition(b"\n")[0] + b"\n" if b"\n" in data else b""
        if len(whole) < len(data):
            os.truncate(self.path, len(whole))
        for line in whole.splitlines():
            record = _read(json.loads(line))
            self.records[(record.name, record.group)] = record


def by_name(records: Iterable[Record]) -> dict[str, list[Record]]:
    """Records by class."""
    found: defaultdict[str, list[Record]] = defaultdict(list)
    for record in records:
        found[record.name].append(record)
    return dict(found)


def _read(plain: dict[str, Any]) -> Record:
    observation = Observation.from_plain(plain["observation"])
    return Record(plain["name"], plain["group"], observation, plain["kl"], (plain["seconds"][0], plain["seconds"][1]))
