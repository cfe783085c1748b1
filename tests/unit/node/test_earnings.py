"""What each role earned, step by step, from tallies and rows; and what a claim would pay."""

from __future__ import annotations

import pytest

from dht.errors import TransportError
from ledger.merkle import merkle_root, verify_proof
from ledger.records import FinalRoot, Leaf
from node.earnings import Holding, Holdings, StepBook, epoch_finder, read_tallies
from roles.tally import build_tally, open_tally
from tests.builders import TRAINER, VALIDATORS, WORKERS, make_judges
from tests.unit.roles.test_tally import make_context, refusal, two_contributions

WALLET = "0x8ba1f109551bD432803012645Ac136ddd64DBA72"


def make_root(epoch: int, *, closing_block: int = 10, blob: str = "ab" * 32) -> FinalRoot:
    return FinalRoot(epoch, 0, closing_block, "cd" * 32, 100, blob, closing_block + 1, (), 1000)


def test_step_book__what_was_accepted_refused_and_is_open__ux_01() -> None:  # UX-01
    context = make_context()
    blob, _ = build_tally(context, two_contributions(), round_number=0, refusals=[refusal()])
    body = open_tally(blob)
    book = StepBook(context.spec, context.registrations)
    book.add_tally(body)
    workers = [line for line in book.sorted() if line.role == "worker"]
    assert sum(line.accepted for line in workers) == sum(leaf.units for leaf in body.leaves if leaf.role == "worker")
    refused = [line for line in workers if line.rejected]
    assert [line.rejected for line in refused] == [1]
    assert sum(refused[0].reasons.values()) >= 1
    assert all(line.epoch == body.epoch for line in workers)
    judges = [line for line in book.sorted() if line.role == "validator"]
    assert sum(line.accepted for line in judges) == sum(leaf.units for leaf in body.leaves if leaf.role == "validator")
    assert {line.node for line in judges} <= {key.node for key in VALIDATORS}


def test_step_book__rows_of_a_tally_are_not_counted_twice() -> None:
    context = make_context()
    contributions = two_contributions()
    rows = [row for each in contributions for row in (each.submission, *each.verdicts)]
    before = StepBook(context.spec, context.registrations)
    before.add_rows(rows, judges=make_judges(context.spec))
    pending = [line for line in before.sorted() if line.role == "worker"]
    assert sum(line.pending for line in pending) > 0
    assert all(line.accepted == 0 and line.epoch is None for line in pending)
    after = StepBook(context.spec, context.registrations)
    after.add_tally(open_tally(build_tally(context, contributions, round_number=0)[0]))
    after.add_rows(rows, judges=make_judges(context.spec))
    assert sum(line.accepted for line in after.sorted() if line.role == "worker") == sum(
        each.pending for each in pending
    )
    assert all(line.pending == 0 for line in after.sorted())


def test_step_book__a_submission_nobody_judged_is_undecided() -> None:
    context = make_context()
    book = StepBook(context.spec, context.registrations)
    book.add_rows([two_contributions()[0].submission], judges=make_judges(context.spec))
    (line,) = book.sorted()
    assert (line.undecided, line.accepted, line.pending, line.rejected) == (1, 0, 0, 0)


def test_step_book__steps_of_trainers_are_final_with_their_epoch() -> None:
    context = make_context()
    book = StepBook(context.spec, context.registrations)
    epoch_of = epoch_finder([make_root(0, closing_block=5)], {1: 5, 2: 6})
    book.add_commits([(1, TRAINER.node), (2, TRAINER.node)], epoch_of)
    assert [(line.epoch, line.accepted, line.pending) for line in book.sorted()] == [(0, 1, 0), (None, 0, 1)]


async def test_read_tallies__says_which_epochs_nobody_has() -> None:
    async def nobody(digest: str) -> bytes:
        raise TransportError("no relay has it")

    assert await read_tallies([make_root(0), make_root(1)], nobody) == ([], [0, 1])


async def test_read_tallies__another_tally_is_not_believed() -> None:
    blob, _ = build_tally(make_context(), two_contributions(), round_number=0)

    async def other(digest: str) -> bytes:
        return blob

    assert await read_tallies([make_root(0)], other) == ([], [0])


@pytest.mark.parametrize(
    ("amount", "wallet", "claimed", "claimable"),
    [(500, WALLET, 0, 500), (500, WALLET, 200, 300), (500, WALLET, 500, 0), (500, None, 0, 0), (100, WALLET, 200, 0)],
)
def test_holding__claimable(amount: int, wallet: str | None, claimed: int, claimable: int) -> None:
    assert Holding(Leaf(WORKERS[0].node, wallet, 7, amount=amount), claimed).claimable == claimable


def test_proof_of__fits_the_root_of_the_leaves() -> None:
    leaves = [Leaf(key.node, WALLET, 7, amount=10) for key in WORKERS[:2]]
    found = Holdings(make_root(0), None, [Holding(leaf, 0) for leaf in leaves])
    assert verify_proof(merkle_root(leaves), leaves[1], found.proof_of(leaves[1]))
    assert Holdings(None, None, ()).epoch == -1
