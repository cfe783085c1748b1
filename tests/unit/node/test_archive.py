"""The archive: what an audit needs is fetched and kept, and given up only when no relay has it."""

from __future__ import annotations

from pathlib import Path

import pytest

from dht.encoding import sha256
from node.archive import TRIES, Archive
from node.audit import audit_run
from roles.shardcast.errors import StoreFull
from roles.shardcast.shelf import Shelf
from tests.builders import TRAINER, WORKERS, MemoryRelays
from tests.unit.node.finished_run import SPEC, FinishedRun, start_run


def make_shelf(folder: Path, *, max_disk: int = 2**24) -> Shelf:
    """An archive's disk."""
    return Shelf(
        folder / "store",
        run=SPEC.run_id,
        trainers=[TRAINER.node],
        max_disk=max_disk,
        keeps_all=True,
        free_space=lambda path: 2**40,
    )


async def tallied_run() -> FinishedRun:
    """One credited submission, whose rollouts are on a relay."""
    run = await start_run()
    blob = b"rollouts"
    await run.relays.put(blob)
    await run.commit()
    submission = run.submission(blob=sha256(blob), size=len(blob))
    await run.tally([run.judged(submission, WORKERS[0])])
    return run


async def test_turn__tally_and_rollouts_are_fetched(tmp_path: Path) -> None:
    run, shelf = await tallied_run(), make_shelf(tmp_path)
    await Archive(SPEC, ledger=run.ledger(None), relays=run.relays, store=shelf.store).turn()
    (root,) = await run.ledger().final_roots()
    assert root.blob in shelf.store
    assert set(run.relays.blobs) == {digest for digest in run.relays.blobs if digest in shelf.store}


async def test_turn__audit_from_the_archive_alone(tmp_path: Path) -> None:
    run, shelf = await tallied_run(), make_shelf(tmp_path)
    await Archive(SPEC, ledger=run.ledger(None), relays=run.relays, store=shelf.store).turn()
    archive = MemoryRelays()
    archive.manifests = run.relays.manifests
    for digest in run.relays.blobs:
        reader = await shelf.store.open(digest)
        assert reader is not None
        archive.blobs[digest] = b"".join([block async for block in reader.blocks(0, reader.size)])
        reader.close()
    report = await audit_run(SPEC, ledger=run.ledger(None), relays=archive, home=tmp_path)
    assert not report.missing


async def test_turn__blob_nobody_has_is_given_up(tmp_path: Path) -> None:
    run, shelf = await tallied_run(), make_shelf(tmp_path)
    (root,) = await run.ledger().final_roots()
    run.relays.blobs = {root.blob: run.relays.blobs[root.blob]}
    archive = Archive(SPEC, ledger=run.ledger(None), relays=run.relays, store=shelf.store)
    for _ in range(TRIES + 2):
        await archive.turn()
    assert len(shelf.store) == 1


async def test_shelf__archive_refuses_what_no_longer_fits_and_drops_nothing(tmp_path: Path) -> None:
    shelf = make_shelf(tmp_path, max_disk=2000)
    first = await shelf.store.put(b"a" * 1500)
    with pytest.raises(StoreFull):
        await shelf.store.put(b"b" * 1500)
    assert first in shelf.store
