"""`model fetch`: what a run has trained, into a folder of its own."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dht.encoding import ZERO_DIGEST
from dht.errors import TransportError
from ledger.records import Commit
from node.errors import ConfigError
from node.trained import fetch_trained, new_folder, pick_commit

COMMITS = [Commit(1, step, f"{step:064x}", ZERO_DIGEST, step == 2, 10 + step, 0) for step in range(3)]


class Relays:
    """Hold the newest checkpoint only."""

    async def fetch_checkpoint(self, digest: str, into: Path, **_: Any) -> Path:
        if digest != COMMITS[-1].manifest:
            raise TransportError("no relay has it")
        folder = into / digest
        folder.mkdir(parents=True)
        (folder / "config.json").write_text("{}")
        return folder


class Ledger:
    async def commits(self) -> list[Commit]:
        return COMMITS


VISIT: Any = SimpleNamespace(ledger=Ledger(), relays=Relays())


async def test_fetch_trained__newest_in_a_folder_by_itself(tmp_path: Path) -> None:
    out = new_folder(tmp_path / "deep" / "trained")
    assert await fetch_trained(VISIT, out) == COMMITS[-1]
    assert [path.name for path in out.iterdir()] == ["config.json"]
    assert list(out.parent.iterdir()) == [out]


async def test_fetch_trained__one_that_no_relay_keeps(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="checkpoint 1 cannot be had: no relay has it; relays keep the newest"):
        await fetch_trained(VISIT, tmp_path / "trained", step=1)


def test_pick_commit__none_yet_and_one_that_there_is_not() -> None:
    with pytest.raises(ConfigError, match="no checkpoint yet"):
        pick_commit([], None)
    with pytest.raises(ConfigError, match="no checkpoint 3; they go from 0, the base model, to 2"):
        pick_commit(COMMITS, 3)


def test_new_folder__nothing_is_overwritten(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="exists already"):
        new_folder(tmp_path)
    with pytest.raises(ConfigError, match="cannot make /proc/none"):
        new_folder(Path("/proc/none/trained"))
