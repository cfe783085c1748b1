"""The audit of a run: everything is correct, or one thing is wrong and named, or a record is missing and reported."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ledger.changes import Claimed
from ledger.records import Commit
from ledger.wallet import address_of
from node.audit import AuditFailed, Report, audit_run
from node.audit.checkpoints import check_links
from node.audit.rollouts import Sample
from node.commands.audit import condensed
from roles.messages import FileEntry
from tests.builders import (
    STRANGER,
    VALIDATOR_OPERATORS,
    WALLETS,
    WORKERS,
    World,
    make_world,
    node_key,
    shared_engine,
    shared_task,
    spoil,
)
from tests.unit.node.finished_run import SPEC, FinishedRun, start_run

NEW = node_key(24)


async def finished(folder: Path, **tally: Any) -> FinishedRun:
    """Two epochs, three submissions, four checkpoints, a strike."""
    run = await start_run()
    await run.commit()
    first = [run.judged(run.submission(key), key) for key in WORKERS[:2]]
    await run.tally(first, **tally)
    for final in (False, True):
        await run.commit(final=final)
    await run.tally([run.judged(run.submission(step=2), WORKERS[0])])
    faults = [
        run.judged(run.submission(WORKERS[1], step=3, index=index), WORKERS[1], outcome="fault", reason=401)
        for index in (1, 2)
    ]
    await run.strike(faults)
    return run


async def audit(run: FinishedRun, folder: Path, *, sample: Sample | None = None) -> Report:
    """An audit by an outsider."""
    return await audit_run(run.spec, ledger=run.ledger(None), relays=run.relays, home=folder, sample=sample)


async def failure(run: FinishedRun, folder: Path, *, sample: Sample | None = None) -> AuditFailed:
    """The first inconsistency found."""
    with pytest.raises(AuditFailed) as caught:
        await audit(run, folder, sample=sample)
    return caught.value


async def test_audit_run__everything_holds(tmp_path: Path) -> None:
    report = await audit(await finished(tmp_path), tmp_path)
    assert not report.missing
    counted = {name: report.checked[name] for name in ("commits", "manifests", "tallies", "submissions", "strikes")}
    assert counted == {"commits": 4, "manifests": 4, "tallies": 2, "submissions": 3, "strikes": 1}
    assert (report.checked["verdicts"], report.checked["receipts"]) == (9, 2)


@pytest.mark.parametrize(
    "lie",
    [
        pytest.param(
            lambda body: {
                "leaves": (body.leaves[0].model_copy(update={"units": body.leaves[0].units + 1}), *body.leaves[1:])
            },
            id="units",
        ),
        pytest.param(
            lambda body: {
                "leaves": (body.leaves[0].model_copy(update={"amount": body.leaves[0].amount - 1}), *body.leaves[1:])
            },
            id="amount",
        ),
        pytest.param(lambda body: {"items": body.items[:1]}, id="item without its units"),
        pytest.param(
            lambda body: {
                "items": (body.items[0].model_copy(update={"verdicts": body.items[1].verdicts}), body.items[1])
            },
            id="verdicts of another submission",
        ),
        pytest.param(lambda body: {"parent_blob": "ab" * 32}, id="parent"),
    ],
)
async def test_audit_run__a_quorum_of_liars_attested_a_tally(tmp_path: Path, lie: Any) -> None:
    run = await finished(tmp_path, lie=lie)
    assert (await failure(run, tmp_path)).what == "tally of epoch 0"


async def test_audit_run__all_validators_were_replaced_between_the_close_and_the_tally(tmp_path: Path) -> None:
    run = await start_run()
    await run.commit()
    await run.replace_validators((node_key(14), WALLETS[1]), (node_key(15), WALLETS[2]))
    await run.tally([run.judged(run.submission(), WORKERS[0])])
    report = await audit(run, tmp_path)
    assert (report.checked["tallies"], report.checked["submissions"], report.checked["verdicts"]) == (1, 1, 2)


async def test_audit_run__validators_were_replaced_after_they_attested(tmp_path: Path) -> None:
    """One of three stays, and its signature alone is a quorum of the new set."""
    run = await start_run()
    await run.commit()
    first = run.judges[0]
    judged = [run.judged(run.submission(), WORKERS[0])]
    await run.tally(judged, sent_after=lambda: run.replace_validators(first))
    assert (await audit(run, tmp_path)).checked["verdicts"] == 3


async def test_audit_run__manifest_signed_by_a_stranger(tmp_path: Path) -> None:
    run = await start_run()
    await run.commit(signer=STRANGER)
    assert (await failure(run, tmp_path)).what == "manifest of checkpoint 1"


@pytest.mark.parametrize("changes", [{"step": 7}, {"parent": "ab" * 32}, {"term": 2}])
async def test_audit_run__manifest_is_not_the_commits(tmp_path: Path, changes: dict[str, Any]) -> None:
    run = await start_run()
    await run.commit(**changes)
    assert (await failure(run, tmp_path)).what == "manifest of checkpoint 1"


async def test_audit_run__begun_at_another_model(tmp_path: Path) -> None:
    run = FinishedRun(SPEC, (await start_run()).chain, (await start_run()).relays, [])
    run.chain.model.runs[SPEC.run_id].events.commits.clear()
    await run.commit(files=(FileEntry(name="model.safetensors", size=7),))
    assert (await failure(run, tmp_path)).what == "manifest of checkpoint 0"


def _commit(step: int, **changes: Any) -> Commit:
    fields: dict[str, Any] = {"term": 1, "step": step, "manifest": f"{step + 1:064x}", "parent": f"{step:064x}"}
    return Commit(**{**fields, "final": False, "block": 10 + step, "timestamp": step, **changes})


@pytest.mark.parametrize(
    "second",
    [_commit(2), _commit(1, parent="ab" * 32), _commit(1, term=0), _commit(1, block=3)],
    ids=["gap", "parent", "term", "block"],
)
def test_check_links__out_of_line(second: Commit) -> None:
    with pytest.raises(AuditFailed):
        check_links([_commit(0), second])


def test_check_links__after_the_end() -> None:
    with pytest.raises(AuditFailed):
        check_links([_commit(0, final=True), _commit(1)])


async def test_audit_run__strike_whose_evidence_proves_nothing(tmp_path: Path) -> None:
    """Acceptances, or fewer faults than the spec requires."""
    run = await start_run()
    await run.commit()
    await run.strike([run.judged(run.submission(WORKERS[1], index=index), WORKERS[1]) for index in (0, 1)])
    assert (await failure(run, tmp_path)).what == f"strike 0 of {WORKERS[1].node}"


async def test_audit_run__each_key_of_a_node_struck_for_what_one_handed_in(tmp_path: Path) -> None:
    """One of the two strikes is lifted later."""
    run = await finished(tmp_path)
    faults = [
        run.judged(run.submission(WORKERS[2], step=3, index=index), WORKERS[2], outcome="fault", reason=401)
        for index in (1, 2)
    ]
    await run.replace_key(WORKERS[2], NEW)
    for key in (WORKERS[2], NEW):
        await run.strike(faults, key.node)
    attestations = [await run.ledger(key).attest_lift(WORKERS[2].node, 0) for key in VALIDATOR_OPERATORS[:2]]
    await run.ledger().lift(WORKERS[2].node, 0, attestations)
    assert (await audit(run, tmp_path)).checked["strikes"] == 3


async def test_audit_run__paid_more_than_earned(tmp_path: Path) -> None:
    run = await finished(tmp_path)
    changes = run.chain.model.runs[SPEC.run_id].events.changes
    changes.append(
        Claimed(
            role="worker",
            node=WORKERS[0].node,
            wallet=address_of(WALLETS[0]),
            amount=10**6,
            paid=10**6,
            block=run.chain.head.number,
        )
    )
    assert (await failure(run, tmp_path)).what == f"payments to {address_of(WALLETS[0])}"


async def test_audit_run__attested_by_too_few(tmp_path: Path) -> None:
    run = await finished(tmp_path)
    roots = run.chain.model.runs[SPEC.run_id].events.roots
    roots[0] = replace(roots[0], attesters=roots[0].attesters[:1])
    assert (await failure(run, tmp_path)).what == "root of epoch 0"


async def test_audit_run__blobs_gone__said_and_nothing_made_up(tmp_path: Path) -> None:
    run = await finished(tmp_path)
    run.relays.blobs.clear()
    del run.relays.manifests[run.manifests[1]]
    report = await audit(run, tmp_path)
    assert [line.partition(":")[0] for line in report.missing] == [
        "manifest of checkpoint 1",
        "tally of epoch 0 and those after it",
        f"strike 0 of {WORKERS[1].node}",
    ]
    assert report.checked["roots with a quorum"] == 2


async def test_audit_run__base_models_manifest_gone__its_size_stands_in_the_spec(tmp_path: Path) -> None:
    run = await finished(tmp_path)
    del run.relays.manifests[run.manifests[0]]
    report = await audit(run, tmp_path)
    assert [line.partition(":")[0] for line in report.missing] == ["manifest of checkpoint 0"]
    assert report.checked["tallies"] == 2


@pytest.mark.parametrize(
    "lie",
    [None, pytest.param(lambda body: {"leaves": body.leaves[:-1]}, id="receipts cut to a size nobody knows any more")],
)
async def test_audit_run__receipts_of_a_checkpoint_nobody_has__missing_and_no_fault(tmp_path: Path, lie: Any) -> None:
    run = await finished(tmp_path, lie=lie)
    del run.relays.manifests[run.manifests[1]]
    report = await audit(run, tmp_path)
    assert [line.partition(":")[0] for line in report.missing][:2] == [
        "manifest of checkpoint 1",
        "what relays earned in the tally of epoch 0",
    ]
    assert (report.checked["tallies"], report.checked["submissions"]) == (1, 3)


async def test_audit_run__receipts_of_a_checkpoint_nobody_has__hide_no_other_lie(tmp_path: Path) -> None:
    run = await finished(tmp_path, lie=lambda body: {"parent_blob": "ab" * 32})
    del run.relays.manifests[run.manifests[1]]
    assert (await failure(run, tmp_path)).what == "tally of epoch 0"


async def test_audit_run__relay_gives_other_bytes__as_if_it_had_none(tmp_path: Path) -> None:
    run = await finished(tmp_path)
    (root, *_) = await run.ledger().final_roots()
    run.relays.blobs[root.blob] += b"x"
    assert any(line.startswith("tally of epoch 0") for line in (await audit(run, tmp_path)).missing)


# -- rollouts verified anew ------------------------------------------------------------------------------------------


ALL = Sample(1.0, "seed", shared_engine, shared_task)


async def with_rollouts(*, is_spoiled: bool) -> FinishedRun:
    """One credited submission with its rollouts; for a spoiled one, the validators lied together."""
    run = await start_run()
    made = await run.rollouts()
    if is_spoiled:
        world = World(run.spec, make_world(run.spec).trusted)
        made = spoil(world, made, lambda row: replace(row, reward=0.5))
        await run.relays.put(made.blob)
    await run.commit()
    await run.tally([run.judged(made.submission, WORKERS[0])])
    return run


async def test_audit_run__honest_rollouts_verified_anew(tmp_path: Path) -> None:
    report = await audit(await with_rollouts(is_spoiled=False), tmp_path, sample=ALL)
    assert (report.checked["rollouts verified anew"], report.missing) == (1, [])


async def test_audit_run__rollouts_of_a_key_that_replaced_another_verified_anew(tmp_path: Path) -> None:
    run = await start_run()
    await run.replace_key(WORKERS[0], NEW)
    made = await run.rollouts(NEW)
    await run.commit()
    await run.tally([run.judged(made.submission, NEW)])
    report = await audit(run, tmp_path, sample=ALL)
    assert (report.checked["rollouts verified anew"], report.missing) == (1, [])


async def test_audit_run__credited_rollouts_at_fault(tmp_path: Path) -> None:
    fault = await failure(await with_rollouts(is_spoiled=True), tmp_path, sample=ALL)
    assert fault.what.startswith(f"rollouts of {WORKERS[0].node}")
    assert "wrong_reward" in fault.why


def test_sample__takes_its_share() -> None:
    digests = [f"{number:064x}" for number in range(1000)]
    half = replace(ALL, share=0.5)
    assert 430 < sum(map(half.takes, digests)) < 570
    assert all(map(ALL.takes, digests))
    assert not any(map(replace(ALL, share=0.0).takes, digests))


def test_condensed__what_differs_in_its_checkpoint_alone_is_one_line() -> None:
    lost = [f"manifest of checkpoint {number}: no relay has it" for number in (0, 1, 2, 7, 8, 9)]
    said = [*lost, "manifest of checkpoint 11: no relay has it", "what relays earned in the tally of epoch 0: unknown"]
    assert condensed(said) == [
        "manifest of checkpoints 0 to 2: no relay has it",
        "manifest of checkpoints 7 to 9: no relay has it",
        "manifest of checkpoint 11: no relay has it",
        "what relays earned in the tally of epoch 0: unknown",
    ]
