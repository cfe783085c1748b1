"""Writes measured thresholds into a run's draft: only the tables `checks.honest`,
`checks.fraud` and `checks.joined`."""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dht.disk import write_durably
from node.errors import ConfigError

_OURS = re.compile(r"^\s*\[\s*checks\s*\.\s*(honest|fraud|joined)\b")
_HEADER = re.compile(r"^\s*\[")
MARK = "# Measured by intellect-node calibrate"


def write_checks(draft: Path, out: Path, checks: Mapping[str, Any], *, note: str) -> None:
    """Write the draft with these tables under `checks` to `out`. Raises ConfigError where they cannot be inserted."""
    text = _without_ours(draft.read_text())
    text = f"{text.rstrip()}\n\n{MARK}: {note}\n{_tables('checks', checks)}"
    try:
        read_back = tomllib.loads(text)["checks"]
    except (tomllib.TOMLDecodeError, KeyError) as error:
        raise ConfigError(
            f"the thresholds do not go into {draft}: {error}; write its checks as tables, [checks] and [checks.honest]"
        ) from error
    if any(read_back.get(name) != table for name, table in checks.items()):
        raise ConfigError(f"the thresholds do not go into {draft}: it sets them in a form of its own under checks")
    try:
        write_durably(out, text.encode())
    except OSError as error:
        raise ConfigError(f"cannot write {out}: {error.strerror}; name another file by --out") from error


def _without_ours(text: str) -> str:
    kept, ours = [], False
    for line in text.splitlines():
        if _HEADER.match(line):
            ours = bool(_OURS.match(line))
        if not ours and not line.startswith(MARK):
            kept.append(line)
    return "\n".join(kept)


def _tables(name: str, table: Mapping[str, Any]) -> str:
    """TOML for nested tables of integers and lists of integers."""
    plain = {key: value for key, value in table.items() if not isinstance(value, Mapping)}
    lines = [f"[{name}]", *(f"{key} = {value}" for key, value in plain.items()), ""] if plain else []
    inner = [_tables(f"{name}.{key}", value) for key, value in table.items() if isinstance(value, Mapping)]
    return "\n".join([*lines, *inner])


def thousandths(value: float) -> int:
    """In thousandths, rounded to the cautious side."""
    return math.ceil(value * 1000)
