"""A run's events on disk after a restart: no block is read twice, and nothing false is believed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ledger.errors import LedgerUnavailable
from ledger.event_file import EventFile
from ledger.reader import RunReader
from ledger.wallet import Domain
from tests.contract.harness import RUN, Registry, digest
from tests.unit.ledger.test_reader import Branches, MadeUp, commit, make_registry
from tests.unit.ledger.test_sender import ScriptedRpc


class Recording(Branches):
    """Records the blocks from which logs were requested."""

    def __init__(self, registry: Registry) -> None:
        super().__init__(registry)
        self.read_from: list[int] = []

    async def call(self, method: str, *parameters: Any) -> Any:
        if method == "eth_getLogs":
            self.read_from.append(int(parameters[0]["fromBlock"], 16))
        return await super().call(method, *parameters)


def open_reader(branches: Branches, folder: Path, *, domain: Domain | None = None, run: str = RUN) -> RunReader:
    domain = domain or branches.rpc.registry.domain
    file = EventFile(folder, domain=domain, run=run, first_block=2)
    return RunReader(branches, domain=domain, run=run, first_block=2, file=file)


async def read_and_close(branches: Branches, folder: Path) -> list[str]:
    reader = open_reader(branches, folder)
    try:
        return [each.manifest for each in (await reader.events()).commits]
    finally:
        reader.close()


def kept(folder: Path) -> Path:
    return next(folder.glob("events-*.jsonl"))


async def test_events__a_restart_reads_only_what_is_new(tmp_path: Path) -> None:
    branches = Recording(make_registry(*[commit(step) for step in range(20)]))
    await read_and_close(branches, tmp_path)
    branches.rpc.registry.commit(20)
    branches.read_from.clear()
    assert await read_and_close(branches, tmp_path) == [digest(step) for step in range(21)]
    assert branches.read_from == [22 - 8 + 1]  # 22 blocks before, 8 of them once more


@pytest.mark.parametrize("damage", ["byte", "line", "header", "garbage"])
async def test_events__a_damaged_file_is_begun_anew(tmp_path: Path, damage: str) -> None:
    branches = Recording(make_registry(commit(0)))
    reader = open_reader(branches, tmp_path)
    for step in (1, 2):
        await reader.refresh(now=True)
        branches.rpc.registry.commit(step)
    await reader.refresh(now=True)
    reader.close()
    lines = kept(tmp_path).read_bytes().splitlines(keepends=True)
    flipped = lines[1][:-5] + bytes([lines[1][-5] ^ 1]) + lines[1][-4:]
    spoiled = {
        "byte": [lines[0], flipped, *lines[2:]],
        "line": [lines[0], *lines[2:]],
        "header": lines[1:],
        "garbage": [b"\xff\x00not lines\n"],
    }
    kept(tmp_path).write_bytes(b"".join(spoiled[damage]))
    branches.read_from.clear()
    assert await read_and_close(branches, tmp_path) == [digest(step) for step in range(3)]
    assert branches.read_from == [2]
    branches.read_from.clear()
    await read_and_close(branches, tmp_path)
    assert branches.read_from == []


async def test_events__a_line_cut_by_a_kill_costs_only_itself(tmp_path: Path) -> None:
    branches = Recording(make_registry(*[commit(step) for step in range(20)]))
    reader = open_reader(branches, tmp_path)
    await reader.refresh(now=True)
    branches.rpc.registry.commit(20)
    await reader.refresh(now=True)
    reader.close()
    kept(tmp_path).write_bytes(kept(tmp_path).read_bytes()[:-40])
    branches.read_from.clear()
    assert len(await read_and_close(branches, tmp_path)) == 21
    assert branches.read_from == [15]


async def test_events__another_contracts_file_is_not_believed(tmp_path: Path) -> None:
    branches = Recording(make_registry(commit(0)))
    await read_and_close(branches, tmp_path)
    path = kept(tmp_path)
    other = Domain(1, branches.rpc.registry.address)
    stranger = open_reader(branches, tmp_path, domain=other)
    foreign = tmp_path / path.name.replace("events-31337", "events-1")
    path.rename(foreign)
    branches.read_from.clear()
    await stranger.refresh(now=True)
    stranger.close()
    assert branches.read_from == [2]


@pytest.mark.parametrize("common", [0, 1, 3])
async def test_events__reorganised_while_the_node_was_down(tmp_path: Path, common: int) -> None:
    shared = [commit(step) for step in range(common)]
    branches = Recording(make_registry(*shared, commit(common, "lost"), lambda registry: registry.skip(1)))
    reader = open_reader(branches, tmp_path)
    await reader.refresh(now=True)
    branches.rpc.registry.skip(1)
    reader.close()
    branches.rpc = ScriptedRpc(make_registry(*shared, commit(common, "won"), *[commit_next(common + 1)]))
    expected = [*(digest(step) for step in range(common)), digest("won"), digest("after")]
    assert await read_and_close(branches, tmp_path) == expected
    assert await read_and_close(branches, tmp_path) == expected


def commit_next(step: int) -> Any:
    return lambda registry: registry.commit(step, manifest=digest("after"), parent=digest("won"))


async def test_events__of_two_processes_one_keeps_the_file(tmp_path: Path) -> None:
    branches = Recording(make_registry(commit(0)))
    first, second = open_reader(branches, tmp_path), open_reader(branches, tmp_path)
    await first.refresh(now=True)
    size = kept(tmp_path).stat().st_size
    assert [each.step for each in (await second.events()).commits] == [0]
    assert kept(tmp_path).stat().st_size == size
    first.close()
    second.close()


async def test_events__a_full_disk_ends_the_keeping_only(tmp_path: Path) -> None:
    branches = Recording(make_registry(commit(0)))
    (tmp_path / "events").write_text("a file where the folder should be")
    reader = open_reader(branches, tmp_path / "events")
    assert [each.step for each in (await reader.events()).commits] == [0]
    reader.close()


async def test_events__a_newest_block_that_is_made_up_fills_no_disk_and_is_forgotten__chain_26(tmp_path: Path) -> None:
    branches = MadeUp(make_registry(commit(0), commit(1)), None)
    reader = open_reader(branches, tmp_path)
    head = await reader.head()
    branches.number = 2**60
    for _ in range(2):
        with pytest.raises(LedgerUnavailable, match="are read up to block"):
            await reader.refresh(now=True)
    reader.close()
    assert len(kept(tmp_path).read_bytes().splitlines()) < 20  # of 256 batches
    branches.number = None
    again = open_reader(branches, tmp_path)
    assert await again.head() == head
    assert [each.manifest for each in (await again.events()).commits] == [digest(0), digest(1)]
    again.close()


async def test_head__lies_as_deep_as_asked() -> None:
    branches = Branches(make_registry(commit(0), commit(1), commit(2)))
    domain = branches.rpc.registry.domain
    reader = RunReader(branches, domain=domain, run=RUN, first_block=2, confirmations=3)
    assert (await reader.head()).number == 3
    assert [each.step for each in (await reader.events()).commits] == [0]
    # The two newest blocks are removed; nothing that was shown is taken back.
    branches.rpc = ScriptedRpc(make_registry(commit(0), commit(1, "won"), lambda registry: registry.skip(1)))
    await reader.refresh(now=True)
    assert [each.manifest for each in (await reader.events()).commits] == [digest(0)]
    branches.rpc.registry.skip(1)
    await reader.refresh(now=True)
    assert [each.manifest for each in (await reader.events()).commits] == [digest(0), digest("won")]
