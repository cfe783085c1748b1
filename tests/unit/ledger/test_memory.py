"""The in-memory ledger: the client's behaviour under scripted time, lag and outage."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ledger.errors import LedgerError, LedgerRejected, LedgerUnavailable
from ledger.memory import MemoryChain, MemoryLedger
from ledger.records import ZERO_DIGEST
from ledger.wallet import address_of
from tests.contract.harness import (
    NODES,
    RUN,
    STRANGER,
    TRAINER,
    VALIDATORS,
    WALLET,
    digest,
    make_proposal,
    make_registration,
    make_rotation,
    make_terms,
)


@pytest.fixture
def chain() -> MemoryChain:
    """A chain with the run in block 1."""
    made = MemoryChain()
    made.create_run(make_terms())
    return made


def view(chain: MemoryChain, key: bytes | None = None, *, lag: int = 0) -> MemoryLedger:
    return MemoryLedger(chain, run=RUN, operator_key=key, lag=lag)


async def commit(chain: MemoryChain, step: int, *, final: bool = False) -> None:
    parent = digest(step - 1) if step else ZERO_DIGEST
    await view(chain, TRAINER).commit_checkpoint(term=1, step=step, manifest=digest(step), parent=parent, final=final)


async def closing(chain: MemoryChain, after: int | None = None) -> int | None:
    block = await view(chain).closing_block(after)
    return block.number if block else None


async def test_commit_checkpoint__harmless_twice_and_refused_as_on_chain(chain: MemoryChain) -> None:
    await commit(chain, 0)
    head = chain.head
    await commit(chain, 0)
    assert chain.head == head
    with pytest.raises(LedgerRejected, match="step"):
        await commit(chain, 2)
    with pytest.raises(LedgerError, match="not a digest"):
        await view(chain, TRAINER).commit_checkpoint(term=1, step=1, manifest="AB" * 32, parent=digest(0), final=False)


async def test_registrations__highest_nonce_the_node_signed(chain: MemoryChain) -> None:
    sponsor = view(chain, STRANGER)
    await sponsor.register(make_registration(chain.domain, wallet=None))
    first = chain.head.number
    # The contract accepts a stranger's junk; readers must not.
    junk = replace(make_registration(chain.domain, wallet=None), nonce=2**64 - 1)
    chain.model.register(junk, block=chain.mine())
    await sponsor.register(make_registration(chain.domain, nonce=5))
    with pytest.raises(LedgerRejected, match="nonce"):
        await sponsor.register(make_registration(chain.domain, nonce=4))
    held = await view(chain).registration(NODES[5])
    assert held is not None
    assert (held.wallet, held.nonce, held.first_block) == (address_of(WALLET), 5, first)
    assert (await view(chain).registrations(until=first))[NODES[5]].wallet is None
    assert await view(chain).registrations(until=first - 1) == {}


async def test_registrations__tell_the_wallets_a_node_was_linked_to_whatever_its_key(chain: MemoryChain) -> None:
    sponsor, blocks = view(chain, STRANGER), []
    registrations = (make_registration(chain.domain), make_registration(chain.domain, nonce=2, wallet=None))
    for request in (*registrations, make_registration(chain.domain, nonce=3, wallet=None)):
        await sponsor.register(request)
        blocks.append(chain.head.number)
    await sponsor.rotate(make_rotation(chain.domain, nonce=4, wallet=None))
    held = (await view(chain).registrations())[NODES[6]]
    assert held.links == ((blocks[0], address_of(WALLET)), (blocks[1], None))  # the third changed nothing
    assert (held.root, held.keys) == (NODES[5], (NODES[5], NODES[6]))


async def test_closing_block__by_checkpoints(chain: MemoryChain) -> None:
    await commit(chain, 0)
    assert await closing(chain) is None
    chain.mine(3)
    await commit(chain, 1)
    assert await closing(chain) == chain.head.number
    at = chain.head.number
    await commit(chain, 2)
    assert await closing(chain) == at
    assert await closing(chain, after=at) is None


async def test_closing_block__by_time_first_block_that_is_late_enough(chain: MemoryChain) -> None:
    await commit(chain, 0)
    chain.mine(59, seconds=10)
    assert await closing(chain) is None
    late = chain.mine(seconds=10)
    chain.mine(7, seconds=10)
    assert await closing(chain) == late.number
    # Nobody earned, so the next epoch begins there.
    assert await closing(chain, after=late.number) is None
    chain.mine(60, seconds=10)
    assert await closing(chain, after=late.number) == late.number + 60


async def test_closing_block__time_before_a_later_checkpoint(chain: MemoryChain) -> None:
    late = chain.mine(seconds=600)
    await commit(chain, 0)
    await commit(chain, 1)
    assert await closing(chain) == late.number


async def test_closing_block__final_checkpoint_then_rounds(chain: MemoryChain) -> None:
    await commit(chain, 0, final=True)
    end = chain.head.number
    assert await closing(chain) == end
    assert await closing(chain, after=end) is None
    chain.mine(10)
    assert await closing(chain, after=end) == end + 10


async def test_finalise__admits_a_block_found_past_unwritten_epochs(chain: MemoryChain) -> None:
    chain.mine(2, seconds=600)
    block = await closing(chain, after=await closing(chain))
    assert block is not None
    proposal = make_proposal(closing_block=block)
    validators = [view(chain, key) for key in VALIDATORS]
    attestations = [await each.attest(proposal) for each in validators]
    await validators[0].finalise(proposal, attestations)
    await validators[1].finalise(proposal, attestations)
    (root,) = await view(chain).final_roots()
    assert root.closing_block == block


async def test_check_attestation__false_for_anything_malformed(chain: MemoryChain) -> None:
    validator = view(chain, VALIDATORS[0])
    proposal = make_proposal()
    good = await validator.attest(proposal)
    assert await validator.check_attestation(proposal, good)
    for bad in (make_proposal(root="zz"), make_proposal(total=-1), make_proposal(total=2**300), make_proposal(epoch=1)):
        assert not await validator.check_attestation(bad, good)
    for spoiled in (replace(good, operator=address_of(STRANGER)), replace(good, signature="zz")):
        assert not await validator.check_attestation(proposal, spoiled)
    with pytest.raises(LedgerError):
        await validator.attest(make_proposal(blob=""))


async def test_lag__a_trailing_view_sees_less(chain: MemoryChain) -> None:
    await commit(chain, 0)
    chain.mine(2)
    trailing = view(chain, lag=3)
    assert await trailing.commits() == []
    assert await trailing.block(chain.head.number) is None
    trailing.lag = 2
    assert [each.step for each in await trailing.commits()] == [0]


async def test_is_down__every_access_fails_and_nothing_changes(chain: MemoryChain) -> None:
    chain.is_down = True
    with pytest.raises(LedgerUnavailable):
        await commit(chain, 0)
    for read in (view(chain).head, view(chain).commits, view(chain).registrations, view(chain).terms):
        with pytest.raises(LedgerUnavailable):
            await read()
    chain.is_down = False
    assert await view(chain).commits() == []
