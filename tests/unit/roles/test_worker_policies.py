"""The weights a worker holds, and how often it retries a fetch that cannot succeed."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dht.encoding import ZERO_DIGEST
from dht.errors import NodeError, TransportError
from ledger.records import Commit
from roles.shardcast.errors import StoreFull
from roles.worker import policies
from roles.worker.policies import Policies

COMMITS = {step: Commit(1, step, f"{step:064x}", ZERO_DIGEST, False, step, 0) for step in range(3)}


class Observer:
    """Something is news all the time."""

    def watch(self) -> Observer:
        return self

    async def changed(self, seconds: float) -> None:
        await asyncio.sleep(0)

    def wake(self) -> None: ...


class Relays:
    def __init__(self, error: NodeError) -> None:
        self.error, self.asked = error, 0

    async def fetch_checkpoint(self, digest: str, folder: Path, **_: Any) -> Path:
        self.asked += 1
        raise self.error

    async def watch(self, *_: Any, **__: Any) -> None:
        await asyncio.Event().wait()


@pytest.mark.parametrize(("error", "asked"), [(StoreFull("no room"), 1), (TransportError("nobody has it"), 3)])
async def test_policies__what_cannot_be_had_is_asked_for_now_and_then(
    error: NodeError, asked: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(policies, "RETRY_SECONDS", 60.0)
    spec = SimpleNamespace(training=SimpleNamespace(async_level=2))
    trusted: Any = SimpleNamespace(view=SimpleNamespace(commits=COMMITS), spec=spec)
    observer: Any = Observer()
    relays = Relays(error)
    held = Policies(trusted=trusted, observer=observer, relays=relays, folder=tmp_path, receipts=None)  # type: ignore[arg-type]
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.2):
            await held.run()
    assert relays.asked == asked
