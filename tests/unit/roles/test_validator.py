"""The validator's loop over an in-memory directory, ledger and relays, with real rollouts and real proofs."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from structlog.testing import capture_logs

from dht.encoding import ZERO_DIGEST, sha256
from dht.records import unix_ms
from ledger.merkle import merkle_root
from ledger.wallet import address_of
from node.status.submissions import DECIDED
from roles.fetching import OF_NODE
from roles.messages import Verdict
from roles.rules import Reason
from roles.seals import earning_validators
from roles.spec import CheckSpec, EpochSpec
from roles.tally import open_tally, plain_leaves
from roles.validator.records import JudgedRows
from roles.verification import CHECKS, Case, Check
from roles.worker.generation import Made, submission_digest
from tests.adversarial.attack import EXACT, with_noisy_states
from tests.builders import (
    POLICY,
    TRAINER,
    VALIDATOR_OPERATORS,
    VALIDATORS,
    WALLETS,
    WORKERS,
    MemoryOffer,
    MemoryRelays,
    World,
    make_registration,
    make_spec,
    make_submission,
    make_verdict,
    manifest_of,
    shared_engine,
    shared_task,
    spoil,
)
from tests.unit.roles.validator_network import JUDGES, ValidatorNetwork, running

VALIDATOR_OPERATOR_ADDRESSES = [address_of(key) for key in VALIDATOR_OPERATORS]


def world_of(network: ValidatorNetwork) -> World:
    """The onlooker's world, to spoil rollouts in."""
    return World(network.spec, network.trusted, shared_engine(), shared_task())


async def verdicts_on(network: ValidatorNetwork, digest: str, count: int = 3) -> list[Verdict]:
    """Wait for that many verdicts on a submission."""

    def found() -> list[Verdict]:
        return [v for number in range(3) if (v := network.verdict_of(number, digest)) is not None]

    await network.until(lambda: len(found()) >= count)
    return found()


def reasons(verdicts: list[Verdict]) -> set[tuple[str, Reason]]:
    """The reasons given, each once."""
    return {(verdict.outcome, Reason(verdict.reason)) for verdict in verdicts}


def varied(made: Made, **changes: Any) -> Made:
    """The same work under other signed fields."""
    submission = made.submission.model_copy(update=changes)
    return replace(made, submission=submission, digest=submission_digest(submission))


async def test_run__honest_submission_accepted_by_all(tmp_path: Path) -> None:
    async with running(tmp_path) as network:
        made = await network.make()
        await network.hand_in(made)
        verdicts = await verdicts_on(network, made.digest)
        assert reasons(verdicts) == {("accept", Reason.ACCEPTED)}
        assert all(verdict.audited and verdict.statistics for verdict in verdicts)
        assert [item.digest for item in network.accepted()] == [made.digest]


async def test_run__epochs_are_tallied_to_the_end_and_validators_leave(tmp_path: Path) -> None:
    """Two epochs: one closed by its checkpoints, one by the end of the run. Every accepted unit is in a final root."""
    async with running(tmp_path) as network:
        first, second = await network.make(), await network.make(WORKERS[1])
        await network.hand_in(first)
        await network.hand_in(second, WORKERS[1])
        await network.until(lambda: len(network.accepted()) == 2)
        await network.commit()
        await network.collect(2)
        third = await network.make(step=2)
        await network.hand_in(third)
        await network.until(lambda: len(network.accepted()) == 3)
        await network.commit()  # the third checkpoint closes the first epoch
        await network.until_epochs(1)
        await network.collect(3)
        fourth = await network.make(step=3)
        await network.hand_in(fourth)
        await network.until(lambda: len(network.accepted()) == 4)
        await network.commit(final=True)
        await network.until_epochs(2)
        roots = await network.ledger.final_roots()
        mine = sum(made.submission.tokens for made in (first, third, fourth))
        body = open_tally(network.relays.blobs[roots[-1].blob])
        leaves = {(leaf.role, leaf.node): (leaf.units, leaf.wallet) for leaf in body.leaves}
        assert leaves[("worker", WORKERS[0].node)] == (mine, address_of(WALLETS[0]))
        assert leaves[("worker", WORKERS[1].node)] == (second.submission.tokens, address_of(WALLETS[1]))
        assert leaves[("trainer", TRAINER.node)][0] == 3
        votes = sum(units for (role, _), (units, _) in leaves.items() if role == "validator")
        assert 2 * 4 <= votes <= 3 * 4  # a quorum of two, or all three, on each of four submissions
        assert roots[-1].root == merkle_root(plain_leaves(body.leaves))
        assert roots[-1].total == sum(leaf.units for leaf in body.leaves)
        assert len(open_tally(network.relays.blobs[roots[-1].blob]).items) == 1
        await network.until(lambda: all(task.done() for task in network.runs))


async def test_run__proposer_gone__the_next_one_proposes(tmp_path: Path) -> None:
    """The first proposer never starts; ledger time moves on to the next round."""
    async with running(tmp_path, validators=(1, 2)) as network:
        made = await network.make()
        await network.hand_in(made)
        await network.until(lambda: len(network.accepted()) == 1)
        await network.commit(final=True)
        await network.until_epochs(1)
        root = (await network.ledger.final_roots())[0]
        assert root.round % 3 != 0
        assert await network.tokens(0) == made.submission.tokens


async def test_run__all_validators_replaced_after_the_close__the_new_ones_tally(tmp_path: Path) -> None:
    async with running(tmp_path, validators=()) as network:
        for _ in range(2):
            await network.commit()
        await network.appoint(3)
        network.start(3)
        await network.until_epochs(1)
        (root,) = await network.ledger.final_roots()
        assert root.attesters == (address_of(JUDGES[3][1]),)


async def test_run__too_few_of_those_who_judged_are_left__verdicts_of_the_set_in_force_count(tmp_path: Path) -> None:
    async with running(tmp_path, validators=(1,)) as network:
        made = await network.make()
        await network.hand_in(made)
        await verdicts_on(network, made.digest, 1)
        for _ in range(2):
            await network.commit()
        await network.appoint(1)
        await network.until_epochs(1)
        assert await network.tokens(0) == made.submission.tokens


async def test_run__faults_that_only_those_who_left_found__the_others_tally(tmp_path: Path) -> None:
    async with running(tmp_path, validators=()) as network:
        cheat = await network.make(WORKERS[1])
        row = await network.hand_in(cheat, WORKERS[1])
        verdict = make_verdict(cheat.submission, outcome="fault", reason=int(Reason.WRONG_REWARD))
        records = JudgedRows(tmp_path / "1" / "judged.sqlite")
        records.keep_fault(cheat.submission, row, [world_of(network).row(verdict, VALIDATORS[left]) for left in (0, 2)])
        records.close()
        for _ in range(2):
            await network.commit()
        await network.appoint(1)
        network.start(1)
        await network.until_epochs(1)


async def test_run__cheat_gets_a_fault_and_no_credit__val_02(tmp_path: Path) -> None:
    async with running(tmp_path) as network:
        honest = await network.make()
        cheat = spoil(world_of(network), await network.make(WORKERS[1]), lambda row: replace(row, reward=0.5))
        await network.hand_in(cheat, WORKERS[1])
        await network.hand_in(honest)
        assert reasons(await verdicts_on(network, cheat.digest)) == {("fault", Reason.WRONG_REWARD)}
        await verdicts_on(network, honest.digest)
        assert [item.digest for item in network.accepted()] == [honest.digest]


async def test_run__deviations_are_refused_softly_and_held_against_the_next_submissions(tmp_path: Path) -> None:
    """Nobody else requests audits; the history does, and a restart remembers it."""

    def never(digest: str) -> bool:
        return digest == audited

    spec = make_spec(epoch=EpochSpec(checkpoints=3, round_seconds=30), checks=CheckSpec(joined=EXACT))
    async with running(tmp_path, validators=(), spec=spec) as network:
        first, second = await network.make(WORKERS[1]), await network.make(WORKERS[1], index=1)
        honest = await network.make()
        noisy = with_noisy_states(world_of(network), first)
        audited, second = noisy.digest, varied(second, predecessor=noisy.digest)
        for number in range(3):
            network.start(number, audits=never)
        await network.hand_in(noisy, WORKERS[1])
        verdicts = await verdicts_on(network, noisy.digest)
        assert reasons(verdicts) == {("soft", Reason.JOINED_UNCERTAIN)}
        assert all(verdict.statistics and verdict.statistics.joined for verdict in verdicts)
        await network.stop()
        for number in range(3):
            network.start(number, audits=never)
        await network.hand_in(second, WORKERS[1])
        await network.hand_in(honest)
        assert reasons(await verdicts_on(network, second.digest)) == {("soft", Reason.HISTORY_DEVIATES)}
        verdicts = await verdicts_on(network, honest.digest)
        assert reasons(verdicts) == {("accept", Reason.ACCEPTED)}
        assert not any(verdict.audited for verdict in verdicts)


async def test_run__gate_fault_is_signed_too(tmp_path: Path) -> None:
    async with running(tmp_path) as network:
        wrong = varied(await network.make(), policy=manifest_of(7))
        await network.hand_in(wrong)
        assert reasons(await verdicts_on(network, wrong.digest)) == {("fault", Reason.WRONG_POLICY)}
        assert not network.trusted.submissions


async def test_run__missing_blob_is_soft_until_it_turns_up(tmp_path: Path) -> None:
    async with running(tmp_path) as network:
        made = await network.make()
        await network.hand_in(made, upload=False)
        assert reasons(await verdicts_on(network, made.digest)) == {("soft", Reason.BLOB_MISSING)}
        await network.relays.put(made.blob)
        await network.until(lambda: len(network.accepted()) == 1)


class StallingRelays(MemoryRelays):
    """A relay that never answers requests for some blobs."""

    def __init__(self) -> None:
        super().__init__()
        self.stalled: set[str] = set()
        self.waiting: set[str] = set()
        self.asked: Counter[str] = Counter()

    async def get(self, digest: str, *, limit: int, relays: Sequence[str] = ()) -> bytes:
        self.asked[digest] += 1
        if digest in self.stalled:
            self.waiting.add(digest)
            await asyncio.Event().wait()
        return await super().get(digest, limit=limit, relays=relays)


async def test_run__blobs_that_never_come_hold_up_nobody_else(tmp_path: Path) -> None:
    """Two workers submit all they may, and the relay they name never finishes a
    response; a third is judged meanwhile."""
    relays = StallingRelays()
    async with running(tmp_path, validators=(0,), relays=relays) as network:
        network.relays = relays
        relays.checkpoints |= {manifest_of(0): POLICY}
        for key in WORKERS[1:]:
            predecessor = ZERO_DIGEST
            for index in range(4):
                blob = sha256(f"{key.node}{index}".encode())
                relays.stalled.add(blob)
                fields = {"index": index, "predecessor": predecessor, "blob": blob, "policy": manifest_of(0)}
                submission = make_submission(world_of(network), key, **fields)
                await network.voice(key).announce(submission)
                predecessor = submission_digest(submission)
        await network.until(lambda: len(network.trusted.submissions) == 8 and bool(relays.waiting))
        made = await network.make()
        await network.hand_in(made)
        assert reasons(await verdicts_on(network, made.digest, count=1)) == {("accept", Reason.ACCEPTED)}
        assert len(relays.waiting) == 2 * OF_NODE


async def test_run__relays_down__nothing_is_held_against_the_worker(tmp_path: Path) -> None:
    async with running(tmp_path) as network:
        made = await network.make()
        await network.hand_in(made)
        network.relays.is_down = True
        await network.until(lambda: made.digest in network.trusted.submissions)
        network.relays.is_down = False
        await network.until(lambda: len(network.accepted()) == 1)
        assert not any(v.outcome == "fault" for v in await verdicts_on(network, made.digest))


async def test_run__clock_set_back_delays_nothing_for_long(tmp_path: Path) -> None:
    ahead = {"ms": 3_600_000}
    async with running(tmp_path, validators=(0,), clock=lambda: unix_ms() + ahead["ms"]) as network:
        made = await network.make()
        await network.hand_in(made, upload=False)
        assert reasons(await verdicts_on(network, made.digest, count=1)) == {("soft", Reason.BLOB_MISSING)}
        ahead["ms"] = 0  # set right
        await network.relays.put(made.blob)
        verdict = network.verdict_of(0, made.digest)
        await network.until(lambda: network.verdict_of(0, made.digest) != verdict)
        assert reasons(await verdicts_on(network, made.digest, count=1)) == {("accept", Reason.ACCEPTED)}


async def test_run__gap_waits_for_its_predecessor(tmp_path: Path) -> None:
    async with running(tmp_path) as network:
        first = await network.make()
        second = await network.make(index=1, predecessor=first.digest)
        await network.hand_in(second)
        other = await network.make(WORKERS[1])
        await network.hand_in(other, WORKERS[1])
        await network.until(lambda: len(network.accepted()) == 1)
        assert second.digest not in network.trusted.standings
        await network.hand_in(first)
        await network.until(lambda: len(network.accepted()) == 3)


async def test_run__second_submission_of_an_index_is_soft(tmp_path: Path) -> None:
    async with running(tmp_path) as network:
        first = await network.make()
        await network.hand_in(first)
        await network.until(lambda: len(network.accepted()) == 1)
        file = spoil(world_of(network), first, lambda row: replace(row, output_logprobs=None))
        await network.hand_in(file)  # another digest, all else in order
        assert reasons(await verdicts_on(network, file.digest)) == {("soft", Reason.EQUIVOCATION)}
        assert [item.digest for item in network.accepted()] == [first.digest]


async def test_run__equivocating_again_and_again_is_a_fault(tmp_path: Path) -> None:
    async with running(tmp_path) as network:
        first = await network.make()
        await network.hand_in(first)
        await network.until(lambda: len(network.accepted()) == 1)
        others = [varied(first, blob=f"{number:02x}" * 32) for number in range(1, 4)]
        for other in others:
            await network.hand_in(other, upload=False)
            await network.until(lambda other=other: other.digest in network.trusted.submissions)  # type: ignore[misc]
        assert reasons(await verdicts_on(network, others[-1].digest)) == {("fault", Reason.REPEATED_EQUIVOCATION)}


async def test_run__late_submission_is_not_judged_unless_another_vouches(tmp_path: Path) -> None:
    async with running(tmp_path, validators=()) as network:
        late = await network.make()
        for step in (2, 3, 4):
            await network.commit()
            await network.collect(step, first=1)
        await network.hand_in(late)
        network.start(0)
        timely = await network.make(WORKERS[1], step=4)
        await network.hand_in(timely, WORKERS[1])
        await verdicts_on(network, timely.digest, 1)
        assert network.verdict_of(0, late.digest) is None
        await network.voice(VALIDATORS[1]).announce(make_verdict(late.submission))
        await network.until(lambda: network.verdict_of(0, late.digest) is not None)


async def test_run__restart_says_again_what_it_said_and_judges_nothing_twice__val_03(tmp_path: Path) -> None:
    async with running(tmp_path, validators=()) as network:
        network.start(0)
        made = await network.make()
        await network.hand_in(made)
        (said,) = await verdicts_on(network, made.digest, 1)
        await network.stop()
        for step in (2, 3, 4):  # by now the row would be late, and its step is no longer in the head
            await network.commit()
            await network.collect(step)
        network.relays.blobs.clear()
        before = network.trusted.standings[made.digest].rows[VALIDATORS[0].node].sequence
        validator = network.start(0)
        await network.until(lambda: network.trusted.standings[made.digest].rows[VALIDATORS[0].node].sequence > before)
        assert network.verdict_of(0, made.digest) == said
        assert made.digest in validator.trusted.submissions


async def test_run__validator_that_lies_alone_stops_nobody(tmp_path: Path) -> None:
    """One of three calls every honest submission a fault; the two others have audited and outvote it."""
    async with running(tmp_path, validators=(0, 1)) as network:
        made = await network.make()
        lie = make_verdict(made.submission, outcome="fault", reason=int(Reason.PROOF_MISMATCH))
        await network.voice(VALIDATORS[2]).announce(lie)
        await network.hand_in(made)
        await network.until(lambda: len(network.accepted()) == 1)
        await network.commit(final=True)
        await network.until_epochs(1)
        assert await network.tokens(0) == made.submission.tokens


async def test_run__wallet_linked_after_the_close_moves_nothing(tmp_path: Path) -> None:
    async with running(tmp_path) as network:
        made = await network.make()
        await network.hand_in(made)
        await network.until(lambda: len(network.accepted()) == 1)
        await network.commit(final=True)
        other = make_registration(network.ledger, network.spec, WORKERS[0], WALLETS[2], nonce=2)
        await network.ledger.register(other)
        await network.until_epochs(1)
        root = (await network.ledger.final_roots())[0]
        (leaf,) = (leaf for leaf in open_tally(network.relays.blobs[root.blob]).leaves if leaf.role == "worker")
        assert (leaf.wallet, leaf.units) == (address_of(WALLETS[0]), made.submission.tokens)


async def test_run__lying_proposer_is_refused_and_the_next_round_counts(tmp_path: Path) -> None:
    """The proposer of round 0 credits a stranger's wallet. Nobody else attests that, and round 1 is honest."""
    async with running(tmp_path, validators=(1, 2)) as network:
        made = await network.make()
        await network.hand_in(made)
        await network.until(lambda: len(network.accepted()) == 1)
        await network.commit(final=True)
        await network.lie_in_tally(0)
        await network.until_epochs(1)
        root = (await network.ledger.final_roots())[0]
        assert root.round != 0
        assert await network.tokens(0) == made.submission.tokens
        assert VALIDATOR_OPERATOR_ADDRESSES[0] not in root.attesters


async def test_run__proposer_who_credits_a_friend_only_is_passed_over(tmp_path: Path) -> None:
    async with running(tmp_path, validators=(1, 2)) as network:
        made = [await network.make(key) for key in WORKERS[:2]]
        for each, key in zip(made, WORKERS, strict=False):
            await network.hand_in(each, key)
        await network.until(lambda: len(network.accepted()) == 2)
        await network.commit()
        await network.commit(final=True)
        await network.favour_in_tally(0, WORKERS[0], round_number=0)
        known = network.validators[VALIDATORS[1].node].trusted.tallies
        await network.until(lambda: any(number > 0 for _, number, _ in known))
        assert {signer for _, number, signer in known if number == 0} == {VALIDATORS[0].node}
        await network.until_epochs(1)
        assert await network.tokens(0) == sum(each.submission.tokens for each in made)


async def test_run__nobody_proposes_what_all_hold__the_epoch_closes_all_the_same(tmp_path: Path) -> None:
    """Validator 2 is gone, and 0 credits only the first worker; 1 objects until everybody has had two turns."""
    spec = make_spec(epoch=EpochSpec(checkpoints=3, round_seconds=10))
    async with running(tmp_path, validators=(1,), spec=spec) as network:
        made = [await network.make(key) for key in WORKERS[:2]]
        for each, key in zip(made, WORKERS, strict=False):
            await network.hand_in(each, key)
            await network.voice(VALIDATORS[2]).announce(make_verdict(each.submission))
        await network.until(lambda: len(network.accepted()) == 2)
        await network.commit()
        await network.commit(final=True)
        await network.favour_in_tally(0, WORKERS[0], round_number=0)
        name, known = VALIDATORS[1].node, network.validators[VALIDATORS[1].node].trusted.tallies
        await network.until(lambda: any(signer == name for _, _, signer in known))  # its own, of a later round
        assert (0, 0, name) not in known
        await network.favour_in_tally(0, WORKERS[0], round_number=9)
        await network.until_epochs(1)
        (root,) = await network.ledger.final_roots()
        assert root.round == 9
        assert await network.tokens(0) == made[0].submission.tokens


async def test_run__proposal_without_a_blob_holds_nobody_up(tmp_path: Path) -> None:
    """Nor does a hint of junk with the maximum length."""
    async with running(tmp_path, validators=(1, 2)) as network:
        made = await network.make()
        await network.hand_in(made)
        await network.until(lambda: len(network.accepted()) == 1)
        await network.commit(final=True)
        await network.promise_tally(0, hint=("\u20ac" * 341,))
        await network.until_epochs(1)
        assert await network.tokens(0) == made.submission.tokens


async def test_run__proposer_of_many_missing_blobs_waits_longer_each_time(tmp_path: Path) -> None:
    """Each costs a timeout; if they were requested at every turn, a few of them would stop every epoch."""
    relays = StallingRelays()
    spec = make_spec(epoch=EpochSpec(checkpoints=3, round_seconds=1))
    async with running(tmp_path, validators=(1, 2), spec=spec, relays=relays) as network:
        network.relays = relays
        relays.checkpoints |= {manifest_of(0): POLICY}
        made = await network.make()
        await network.hand_in(made)
        await network.until(lambda: len(network.accepted()) == 1)
        await network.commit(final=True)
        for number in range(0, 60, 3):  # every round in which it is its turn
            row = await network.promise_tally(0, hint=(), round_number=number, blob=f"{number:064x}")
            for validator in network.validators.values():
                validator.trusted.admit_tally(row)
        await network.until_epochs(1)
        assert await network.tokens(0) == made.submission.tokens
        asked = sum(relays.asked[f"{number:064x}"] for number in range(60))
        assert 2 <= asked <= 8  # two validators, one try each in the first seconds and few later


async def test_run__epochs_without_a_commit_however_many_do_not_end_tallying(tmp_path: Path) -> None:
    """The run was idle overnight; what is earned afterwards is tallied all the same."""
    spec = make_spec(epoch=EpochSpec(checkpoints=3, max_seconds=60, round_seconds=5))
    async with running(tmp_path, spec=spec) as network:
        network.chain.mine(100, seconds=60)
        made = await network.make()
        await network.hand_in(made)
        await network.until(lambda: len(network.accepted()) == 1)
        await network.commit()
        network.chain.mine(3, seconds=60)
        await network.until_epochs(1)
        assert await network.tokens(0) == made.submission.tokens


async def test_run__fault_of_this_node_condemns_nobody__val_05(tmp_path: Path) -> None:
    """The checker fails twice, then works."""
    broken = iter([True, True])

    def breaks(case: Case) -> None:
        if next(broken, False):
            raise RuntimeError("out of memory")

    checks = (Check("breaks", breaks), *CHECKS)
    with capture_logs() as logs:
        async with running(tmp_path, validators=(0,), checks=checks) as network:
            made = await network.make()
            await network.hand_in(made)
            assert reasons(await verdicts_on(network, made.digest, 1)) == {("accept", Reason.ACCEPTED)}
    said = [entry["event"] for entry in logs]
    assert said.count("submission.unverified") == 2
    assert DECIDED.keys().isdisjoint(said)  # what became of it, its worker says


async def test_turn__a_commit_that_is_undone_as_its_fetch_begins_stops_nothing__chain_fork(tmp_path: Path) -> None:
    async with running(tmp_path, validators=()) as network:
        validator, observer = network.build(0)
        await observer.look()
        trusted = validator.trusted
        assert trusted.view is not None

        async def undo() -> None:
            assert trusted.view is not None
            trusted.admit_view(replace(trusted.view, commits={}))

        async with asyncio.TaskGroup() as group:
            group.create_task(validator.judging.turn(group))
            group.create_task(undo())
        assert not trusted.view.commits


async def test_run__fault_by_another_obliges_to_audit(tmp_path: Path) -> None:
    async with running(tmp_path, validators=(0,), audits=lambda digest: False) as network:
        made = await network.make()
        await network.hand_in(made)
        (said,) = await verdicts_on(network, made.digest, 1)
        assert (said.outcome, said.audited) == ("accept", False)
        fault = make_verdict(made.submission, outcome="fault", reason=int(Reason.PROOF_MISMATCH))
        await network.voice(VALIDATORS[1]).announce(fault)
        await network.until(lambda: getattr(network.verdict_of(0, made.digest), "audited", False))
        assert reasons([v for v in [network.verdict_of(0, made.digest)] if v]) == {("accept", Reason.ACCEPTED)}


async def test_run__audited_refusal_by_another_obliges_to_audit(tmp_path: Path) -> None:
    """Acceptances without an audit are retracted too, so that what one audit finds is not paid after all."""
    spec = make_spec(epoch=EpochSpec(checkpoints=3, round_seconds=30), checks=CheckSpec(joined=EXACT))
    async with running(tmp_path, validators=(1, 2), spec=spec, audits=lambda digest: False) as network:
        noisy = with_noisy_states(world_of(network), await network.make())
        await network.hand_in(noisy)
        assert reasons(await verdicts_on(network, noisy.digest, 2)) == {("accept", Reason.ACCEPTED)}
        network.start(0, audits=lambda digest: True)
        uncertain = ("soft", Reason.JOINED_UNCERTAIN)
        await network.until(
            lambda: [reasons([v]) for n in range(3) if (v := network.verdict_of(n, noisy.digest))] == 3 * [{uncertain}]
        )
        assert not network.accepted()


async def test_run__verdict_follows_within_a_third_of_a_second(tmp_path: Path) -> None:
    """Once the policy is there. Measured on the fastest of a few, since the machine may be busy."""
    async with running(tmp_path, validators=(0,)) as network:
        loop, times, predecessor = asyncio.get_running_loop(), [], ZERO_DIGEST
        for index in range(4):
            made = await network.make(index=index, predecessor=predecessor)
            predecessor = made.digest
            await network.hand_in(made)
            began = loop.time()
            await verdicts_on(network, made.digest, 1)
            times.append(loop.time() - began)
        assert min(times) < 0.33


async def test_run__sealed__no_verdict_is_read_before_others_are_sealed__val_07(tmp_path: Path) -> None:
    """Validators that judge with the others are listed by them and earn; one that comes after
    they have opened is too late."""
    spec = make_spec(checks=CheckSpec(seals=True), epoch=EpochSpec(checkpoints=3, round_seconds=30))
    async with running(tmp_path, spec=spec, validators=(0, 1)) as network:
        made = await network.make()
        await network.hand_in(made)
        await verdicts_on(network, made.digest, count=2)
        network.start(2)
        verdicts = await verdicts_on(network, made.digest)
        assert reasons(verdicts) == {("accept", Reason.ACCEPTED)}
        assert all(verdict.salt for verdict in verdicts)
        standing = network.trusted.standings[made.digest]
        assert earning_validators(standing.verdicts, sealed=True) == {key.node for key in VALIDATORS[:2]}
        late = network.verdict_of(2, made.digest)
        assert late is not None
        assert len(late.seen) == 2  # it saw the others', they could not see its own


async def test_run__sealed__the_others_silent__opened_after_a_short_time(tmp_path: Path) -> None:
    spec = make_spec(checks=CheckSpec(seals=True), epoch=EpochSpec(checkpoints=3, round_seconds=30))
    async with running(tmp_path, spec=spec, validators=(0,)) as network:
        made = await network.make()
        await network.hand_in(made)
        (verdict,) = await verdicts_on(network, made.digest, count=1)
        assert (verdict.outcome, verdict.seen) == ("accept", ())


async def test_run__next_checkpoint_is_here_before_its_commit(tmp_path: Path) -> None:
    async with running(tmp_path, validators=(0,)) as network:
        network.relays.checkpoints[manifest_of(1)] = POLICY
        network.relays.offers.put_nowait(MemoryOffer(manifest_of(1), 1))
        folder = tmp_path / "0" / "checkpoints" / manifest_of(1)
        await network.until(folder.is_dir)
        turns = network.chain.head  # its loop prunes what it does not want, again and again
        await network.until(lambda: network.chain.head.number > turns.number + 3)
        assert folder.is_dir()
        assert network.trusted.committed(1) is None


async def test_run__new_node_is_audited_until_it_has_passed(tmp_path: Path) -> None:
    """One found at fault is audited from the start again; a restart forgets neither."""
    sampled = CheckSpec(audit_rate=1, audit_window=1, probation=1)
    spec = make_spec(epoch=EpochSpec(checkpoints=3, round_seconds=30), checks=sampled)
    async with running(tmp_path, validators=(), spec=spec) as network:
        chain = [await network.make()]
        for index in (1, 2, 3):
            chain.append(await network.make(index=index, predecessor=chain[-1].digest))
        audited = []
        for number, made in enumerate(chain):
            network.start(0, audits=lambda digest: False)
            if number == 2:
                made = varied(made, tokens=made.submission.tokens + 1)
                chain[3] = varied(chain[3], predecessor=made.digest)
            await network.hand_in(made if number < 3 else chain[3])
            (said,) = await verdicts_on(network, made.digest if number < 3 else chain[3].digest, 1)
            audited.append((said.outcome, said.audited))
            await network.stop()
    assert audited == [("accept", True), ("accept", False), ("fault", False), ("accept", True)]
