"""The registry contract on an EVM: what each function does, and each reason for which it refuses."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ledger.errors import LedgerRejected
from ledger.records import ZERO_DIGEST, Operator, RunTerms
from ledger.registrations import RegistrationEvent
from ledger.wallet import NO_ADDRESS, address_of, node_from_public_key
from tests.contract.harness import (
    NODES,
    OWNER,
    RUN,
    STRANGER,
    VALIDATORS,
    WALLET,
    Registry,
    attest,
    digest,
    make_operator,
    make_proposal,
    make_registration,
    make_registry,
    make_terms,
)

pytestmark = pytest.mark.no_cover  # the contract's lines are at stake, not ours
SECP256K1_ORDER = 0xFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFEBAAEDCE6AF48A03BBFD25E8CD0364141


@pytest.fixture
def empty() -> Registry:
    """A registry without runs."""
    return Registry()


@pytest.fixture
def registry() -> Registry:
    """A registry with one run, created in block 2."""
    return make_registry()


@pytest.fixture
def closable(registry: Registry) -> Registry:
    """Checkpoints 0 and 1 in blocks 3 and 4: epoch 0 closes in block 4."""
    registry.commit(0)
    registry.commit(1)
    return registry


def test_create_run__holds_its_terms(registry: Registry) -> None:
    assert registry.terms() == make_terms()
    assert registry.view("run_count") == (1,)
    assert registry.view("run_ids", 0) == (bytes.fromhex(RUN),)


NO_NODE = node_from_public_key(bytes(32))


@pytest.mark.parametrize(
    ("terms", "reason"),
    [
        (make_terms(run=ZERO_DIGEST), "run id is zero"),
        (make_terms(validators=()), "no validator"),
        (make_terms(trainers=()), "no trainer"),
        (make_terms(quorum=1), "quorum"),
        (make_terms(quorum=4), "quorum"),
        (make_terms(validators=tuple(make_operator(i) for i in (1, 2, 3, 4)), quorum=2), "quorum"),
        (make_terms(epoch_checkpoints=0), "epoch checkpoints"),
        (make_terms(epoch_max_seconds=0), "epoch seconds"),
        (make_terms(round_seconds=0), "round seconds"),
        (make_terms(validators=(replace(make_operator(1), node=NO_NODE),), quorum=1), "node is zero"),
        (make_terms(validators=(replace(make_operator(1), operator=NO_ADDRESS),), quorum=1), "operator is zero"),
        (make_terms(trainers=(replace(make_operator(0), payout=NO_ADDRESS),)), "payout is zero"),
        (make_terms(trainers=(make_operator(0), replace(make_operator(1), node=NODES[0]))), "node repeated"),
        (
            make_terms(validators=(make_operator(1), replace(make_operator(1), node=NODES[2])), quorum=2),
            "operator repeated",
        ),
    ],
)
def test_create_run__refuses(empty: Registry, terms: RunTerms, reason: str) -> None:
    with pytest.raises(LedgerRejected) as refusal:
        empty.create_run(terms)
    assert refusal.value.reason == reason


def test_create_run__refuses_a_second_time(registry: Registry) -> None:
    with pytest.raises(LedgerRejected, match="run exists"):
        registry.create_run(make_terms(quorum=3))


def test_create_run__takes_the_most_operators_it_allows(empty: Registry) -> None:
    validators = tuple(
        Operator(node_from_public_key(bytes([index + 1] * 32)), "0x" + f"{index + 1:040x}", make_operator(0).payout)
        for index in range(64)
    )
    receipt = empty.create_run(make_terms(validators=validators, quorum=33))
    assert int(receipt["gasUsed"], 16) < 8_000_000
    assert len(empty.terms().validators) == 64


def test_register__emits_what_readers_verify(registry: Registry) -> None:
    request = make_registration(registry.domain)
    registry.register(request)
    (event,) = registry.events().registrations
    assert isinstance(event, RegistrationEvent)
    assert (event.node, event.wallet, event.claimed, event.nonce) == (NODES[5], address_of(WALLET), None, 1)
    assert event.node_signature == request.node_signature


def test_register__unlinked_takes_any_nonce_again(registry: Registry) -> None:
    # A stranger's junk with a huge nonce must not lock the node out: readers judge by the node's signature.
    request = make_registration(registry.domain, wallet=None, claimed=address_of(WALLET))
    registry.register(replace(request, nonce=2**64 - 1))
    registry.register(request)
    assert [event.nonce for event in registry.events().registrations] == [2**64 - 1, 1]


def test_register__refuses(registry: Registry) -> None:
    good = make_registration(registry.domain)
    unlinked = make_registration(registry.domain, wallet=None)
    high_s = bytes.fromhex(good.wallet_signature)
    flipped = (SECP256K1_ORDER - int.from_bytes(high_s[32:64], "big")).to_bytes(32, "big")
    twin = high_s[:32] + flipped + bytes([55 - high_s[64]])
    cases = [
        (replace(good, run=digest("other")), "unknown run"),
        (replace(good, node=NO_NODE), "node is zero"),
        (replace(good, nonce=0), "nonce"),
        (replace(unlinked, nonce=2**64), "nonce"),
        (replace(good, node_signature="ab"), "node signature length"),
        (replace(unlinked, wallet_signature=good.wallet_signature), "signature without a wallet"),
        (replace(good, claimed=address_of(STRANGER)), "both linked and claimed"),
        (replace(good, nonce=2), "wallet signature"),
        (replace(good, node=NODES[6]), "wallet signature"),
        (replace(good, wallet=address_of(STRANGER)), "wallet signature"),
        (replace(good, wallet_signature=good.wallet_signature[:-2]), "wallet signature"),
        (replace(good, wallet_signature="00" * 65), "wallet signature"),
        (replace(good, wallet_signature=twin.hex()), "wallet signature"),
    ]
    for request, reason in cases:
        with pytest.raises(LedgerRejected) as refusal:
            registry.register(request)
        assert refusal.value.reason == reason, request
    assert registry.events().registrations == []


def test_register__refuses_another_contracts_signature(registry: Registry) -> None:
    elsewhere = replace(registry.domain, contract=address_of(STRANGER))
    with pytest.raises(LedgerRejected, match="wallet signature"):
        registry.register(make_registration(elsewhere))


def test_register__refuses_a_replay__key_08(registry: Registry) -> None:
    registry.register(make_registration(registry.domain, nonce=3))
    with pytest.raises(LedgerRejected, match="nonce"):
        registry.register(make_registration(registry.domain, nonce=2))


def test_commit_checkpoint__parent_linked_and_timed(closable: Registry) -> None:
    first, second = closable.events().commits
    assert (first.step, first.parent, first.block) == (0, ZERO_DIGEST, 3)
    assert (second.step, second.parent, second.block) == (1, first.manifest, 4)
    assert second.timestamp == closable.chain.head_timestamp
    assert closable.view("checkpoints_until", bytes.fromhex(RUN), 3) == (1,)


def test_commit_checkpoint__refuses(closable: Registry) -> None:
    with pytest.raises(LedgerRejected, match="unknown run"):
        closable.commit(2, run=digest("other"))
    with pytest.raises(LedgerRejected, match="not the leading trainer"):
        closable.commit(2, key=VALIDATORS[0])
    with pytest.raises(LedgerRejected, match="term"):
        closable.commit(2, term=2)
    with pytest.raises(LedgerRejected, match="manifest is zero"):
        closable.commit(2, manifest=ZERO_DIGEST)
    with pytest.raises(LedgerRejected, match="step"):
        closable.commit(1)
    with pytest.raises(LedgerRejected, match="step"):
        closable.commit(3)
    with pytest.raises(LedgerRejected, match="parent"):
        closable.commit(2, parent=digest(0))
    closable.commit(2, final=True)
    with pytest.raises(LedgerRejected, match="run has ended"):
        closable.commit(3)


def test_commit_checkpoint__only_the_first_trainer_leads(empty: Registry) -> None:
    empty.create_run(make_terms(trainers=(make_operator(4), make_operator(0))))
    with pytest.raises(LedgerRejected, match="not the leading trainer"):
        empty.commit(0)


def test_finalise__holds_the_root(closable: Registry) -> None:
    closable.finalise(make_proposal())
    (root,) = closable.events().roots
    assert (root.epoch, root.root, root.total, root.closing_block) == (0, digest("root 0"), 100, 4)
    assert root.attesters == tuple(address_of(key) for key in VALIDATORS[:2])
    assert closable.view("epoch_count", bytes.fromhex(RUN)) == (1,)


def test_finalise__refuses(closable: Registry) -> None:
    cases = [
        (make_proposal(run=digest("other")), "unknown run"),
        (make_proposal(epoch=1), "epoch"),
        (make_proposal(parent_root=digest("x")), "parent root"),
        (make_proposal(root=ZERO_DIGEST), "root is zero"),
        (make_proposal(round=2**40), "round"),
        (make_proposal(total=2**128), "units"),
        (make_proposal(closing_block=2), "closing block"),
        (make_proposal(closing_block=6), "closing block"),
        (make_proposal(closing_block=3), "epoch is open"),
    ]
    for proposal, reason in cases:
        with pytest.raises(LedgerRejected) as refusal:
            closable.finalise(proposal)
        assert refusal.value.reason == reason, proposal


def test_finalise__needs_a_quorum_of_distinct_validators(closable: Registry) -> None:
    proposal = make_proposal()
    one, two = (attest(closable.domain, proposal, key) for key in VALIDATORS[:2])
    stranger = attest(closable.domain, proposal, STRANGER)
    other = attest(closable.domain, make_proposal(total=99), VALIDATORS[1])
    cases = [
        ([], "too few attestations"),
        ([one], "too few attestations"),
        ([one, one], "attester repeated"),
        ([one, two, stranger], "not a validator"),
        ([one, other], "not a validator"),
        ([one, replace(two, signature=two.signature[:-2] + "00")], "not a validator"),
        ([one, replace(two, signature="")], "not a validator"),
    ]
    for attestations, reason in cases:
        with pytest.raises(LedgerRejected) as refusal:
            closable.finalise(proposal, attestations)
        assert refusal.value.reason == reason, attestations
    assert closable.events().roots == []


def test_finalise__total_never_falls(closable: Registry) -> None:
    closable.finalise(make_proposal())
    closable.commit(2)
    closable.commit(3)
    following = make_proposal(epoch=1, parent_root=digest("root 0"), closing_block=7, root=digest("root 1"))
    with pytest.raises(LedgerRejected, match="units"):
        closable.finalise(replace(following, total=99))
    closable.finalise(following)


def test_finalise__first_root_wins(closable: Registry) -> None:
    closable.finalise(make_proposal())
    with pytest.raises(LedgerRejected, match="epoch"):
        closable.finalise(make_proposal(root=digest("rival")))


def test_finalise__after_the_epochs_time(registry: Registry) -> None:
    registry.commit(0)
    proposal = make_proposal(closing_block=4)
    registry.skip(590)
    with pytest.raises(LedgerRejected, match="epoch is open"):
        registry.finalise(proposal)
    registry.skip(10)
    registry.finalise(proposal)


def test_finalise__final_checkpoint_closes_and_later_verdicts_wait_a_round(registry: Registry) -> None:
    registry.commit(0, final=True)
    registry.finalise(make_proposal(closing_block=3))
    late = make_proposal(epoch=1, parent_root=digest("root 0"), closing_block=4, root=digest("root 1"))
    with pytest.raises(LedgerRejected, match="epoch is open"):
        registry.finalise(late)
    registry.skip(10)
    registry.finalise(late)


def test_finalise__gas_does_not_grow_with_contributions(closable: Registry) -> None:
    first = closable.finalise(make_proposal(total=1))
    closable.commit(2)
    closable.commit(3)
    second = closable.finalise(
        make_proposal(epoch=1, parent_root=digest("root 0"), closing_block=7, root=digest("root 1"), total=10**30)
    )
    assert abs(int(first["gasUsed"], 16) - int(second["gasUsed"], 16)) < 10_000


def test_runs__do_not_mix(closable: Registry) -> None:
    closable.create_run(make_terms(run=digest("other")))
    closable.commit(0, run=digest("other"))
    with pytest.raises(LedgerRejected, match="epoch is open"):
        closable.finalise(make_proposal(run=digest("other"), closing_block=6))


def test_owner__has_no_say_over_a_run(registry: Registry) -> None:
    with pytest.raises(LedgerRejected, match="not the leading trainer"):
        registry.commit(0, key=OWNER)
