"""The contract compared with its Python model: any sequence of calls gives the same results,
reasons, events and payments.

Two runs share the contract, so that a mix-up of their coins would show. `REGISTRY_SEQUENCES` and `REGISTRY_ACTIONS`
request a longer search than the default.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import replace
from typing import Any, ClassVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from ledger import standing
from ledger.errors import LedgerRejected
from ledger.merkle import merkle_proof, merkle_root
from ledger.model import RegistryModel, RunState
from ledger.records import ROLES_BY_NUMBER, ZERO_DIGEST, Attestation, Commit, Leaf, Proposal, Strike
from ledger.signing import lift_typed_data, strike_typed_data
from ledger.wallet import address_of, public_key_from_node, sign_typed_data, tally_typed_data
from tests.contract.harness import (
    ADDRESSES,
    KEYS,
    NODES,
    OWNER,
    RUN,
    STRANGER,
    TRAINER,
    VALIDATORS,
    Registry,
    digest,
    make_operator,
    make_registration,
    make_rotation,
    make_terms,
)

SEQUENCES = int(os.environ.get("REGISTRY_SEQUENCES", "50"))
ACTIONS = int(os.environ.get("REGISTRY_ACTIONS", "20"))
pytestmark = [
    pytest.mark.slow,
    pytest.mark.no_cover,  # tracing takes as long again, in the EVM above all; other tests reach the same lines
    pytest.mark.timeout(0 if SEQUENCES > 50 else 300),
]
OTHER = digest("other run")
OTHER_VALIDATORS = KEYS[4:6]
TRAINERS = (TRAINER, KEYS[4], KEYS[6])
WALLETS = (KEYS[7], KEYS[10], KEYS[11])
ANYBODY = (*TRAINERS, *WALLETS, OWNER, STRANGER)

OFFSETS = st.sampled_from([0, 0, 0, 0, 1, -1])
MOSTLY = st.sampled_from([True] * 5 + [False])
SELDOM = st.sampled_from([False] * 9 + [True])
RUNS = st.sampled_from([RUN, RUN, RUN, OTHER])
NODE = st.sampled_from(NODES[5:7])
WALLET = st.sampled_from(WALLETS)
AMOUNT = st.sampled_from([1, 7, 100, 100, 400, 0])


def outcome(call: Callable[[], Any]) -> str:
    """The reason of a refusal, "" for success."""
    try:
        call()
    except LedgerRejected as error:
        return error.reason
    return ""


class RegistryMachine(RuleBasedStateMachine):
    registry: Registry
    model: RegistryModel
    beginning: ClassVar[tuple[Registry, RegistryModel] | None] = None
    """Contract and model with two runs created, funded and one step on. Each sequence takes a copy, which is cheap."""

    def __init__(self) -> None:
        super().__init__()
        self.trees: dict[str, list[tuple[Leaf, ...]]] = {RUN: [], OTHER: []}
        if RegistryMachine.beginning is None:
            self._begin()
            RegistryMachine.beginning = self.registry, self.model
        self.registry, self.model = deepcopy(RegistryMachine.beginning)

    def _begin(self) -> None:
        self.registry = Registry()
        self.model = RegistryModel(self.registry.domain)
        for run in (RUN, OTHER):
            terms = make_terms(
                run=run,
                trainers=tuple(make_operator(index) for index in (0, 4, 6)),
                epoch_max_seconds=30,
                round_seconds=5,
                lease_seconds=20,
                takeover_blocks=2,
                min_stake=5,
                unbond_seconds=15,
                dispute_seconds=10,
                change_seconds=12,
                epoch_budget=300,
            )
            terms = replace(terms, created_block=self.registry.next_block.number)
            self.model.create_run(terms, block=self.registry.next_block)
            self.registry.create_run(terms)
            self.both(OWNER, "fund", 500, run=run)
        for _ in range(2):
            self.commit(RUN, 0, True, False, 0)

    def state(self, run: str) -> RunState:
        return self.model.runs[run]

    def same(self, expected: Callable[[], Any], got: Callable[[], Any]) -> bool:
        """Apply the same call to model and contract. Returns whether both executed it."""
        reason = outcome(expected)
        self.registry.is_sure = reason == ""
        assert outcome(got) == reason
        return reason == ""

    def both(self, key: bytes, name: str, *arguments: Any, run: str) -> bool:
        """A call with its arguments as `BaseLedger` gives them."""
        call, block = getattr(self.model, name), self.registry.next_block
        return self.same(
            lambda: call(run, *arguments, sender=address_of(key), block=block),
            lambda: self.registry.do(key, name, *arguments, run=run),
        )

    def signed(self, run: str, typed: dict[str, Any], honest: bool, others: Sequence[bytes]) -> list[Attestation]:
        """Attestations by a quorum of the validators in force, or by arbitrary ones."""
        current = VALIDATORS if self.state(run).set_in_force == 0 else OTHER_VALIDATORS
        keys = current[:2] if honest else others
        return [Attestation(address_of(key), sign_typed_data(typed, key)) for key in keys]

    # -- training

    @rule(seconds=st.integers(1, 40))
    def wait(self, seconds: int) -> None:
        self.registry.skip(seconds)

    @rule(run=RUNS, offset=OFFSETS, parent=MOSTLY, final=SELDOM, trainer=OFFSETS)
    def commit(self, run: str, offset: int, parent: bool, final: bool, trainer: int) -> None:
        state, block = self.state(run), self.registry.next_block
        commits = state.events.commits
        step, last = max(0, len(commits) + offset), commits[-1].manifest if commits else ZERO_DIGEST
        commit = Commit(state.term + (offset == 1), step, digest(step), last if parent else digest("x"), final, 0, 0)
        key = TRAINERS[(state.leader + trainer) % 3]
        self.same(
            lambda: self.model.commit_checkpoint(run, commit, sender=address_of(key), block=block),
            lambda: self.registry.commit(
                step, key=key, run=run, term=commit.term, manifest=commit.manifest, parent=commit.parent, final=final
            ),
        )

    @rule(run=RUNS, trainer=OFFSETS, behind=st.integers(1, 2))
    def take_over(self, run: str, trainer: int, behind: int) -> None:
        """Renew, or wait for the lapse, report it, wait, take over: each as far as the contract permits."""
        leader = self.state(run).leader
        if trainer == 1:
            self.both(TRAINERS[leader], "renew", run=run)
            return
        key = TRAINERS[(leader + behind) % 3]
        self.both(key, "report_lapse", run=run)
        if trainer == 0:
            self.registry.skip(21)
            self.both(key, "report_lapse", run=run)
            self.registry.skip(1)
        self.both(key, "take_over", run=run)

    @rule(
        run=RUNS,
        flaw=st.sampled_from([""] * 6 + ["epoch", "parent", "block", "more", "less", "signers", "early"]),
        more=st.lists(st.integers(0, 120), min_size=3, max_size=3),
        signers=st.lists(st.sampled_from([*VALIDATORS, *OTHER_VALIDATORS]), max_size=3),
    )
    def finalise(self, run: str, flaw: str, more: list[int], signers: list[bytes]) -> None:
        """A tally whose leaves grow by `more`, for an epoch that has closed, or one with a flaw."""
        roots = self.state(run).events.roots
        for _ in range(0 if flaw == "early" else 2):
            self.commit(run, 0, True, False, 0)
        block, leaves = self.registry.next_block, self._grown(run, more)
        total = sum(leaf.amount for leaf in leaves)
        proposal = Proposal(
            run=run,
            epoch=len(roots) + (flaw == "epoch"),
            round=0,
            closing_block=block.number + (1 if flaw == "block" else -1),
            parent_root=roots[-1].root if roots and flaw != "parent" else ZERO_DIGEST,
            root=merkle_root(leaves),
            total=sum(leaf.units for leaf in leaves),
            blob=digest("blob"),
            amount=total + 200 if flaw == "more" else total // 2 if flaw == "less" else total,
        )
        typed = tally_typed_data(self.registry.domain, proposal)
        attestations = self.signed(run, typed, flaw != "signers", signers)
        if self.same(
            lambda: self.model.finalise(proposal, attestations, block=block),
            lambda: self.registry.finalise(proposal, attestations),
        ):
            self.trees[run].append(leaves)

    def _grown(self, run: str, more: list[int]) -> tuple[Leaf, ...]:
        before = self.trees[run][-1] if self.trees[run] else ()
        owners = [(ROLES_BY_NUMBER[place], NODES[5 + place % 2], address_of(key)) for place, key in enumerate(WALLETS)]
        held = {(leaf.role, leaf.node, leaf.wallet): leaf for leaf in before}
        grown = []
        for (role, node, wallet), extra in zip(owners, more, strict=True):
            leaf = held.get((role, node, wallet), Leaf(node, wallet, 0, role))
            grown.append(replace(leaf, units=leaf.units + extra, amount=leaf.amount + extra))
        return tuple(grown)

    # -- money

    @rule(run=RUNS, key=st.sampled_from(ANYBODY), amount=AMOUNT)
    def fund(self, run: str, key: bytes, amount: int) -> None:
        self.both(key, "fund", amount, run=run)

    @rule(run=RUNS, key=st.sampled_from(ANYBODY), place=st.integers(0, 2), back=SELDOM, more=OFFSETS)
    def claim(self, run: str, key: bytes, place: int, back: bool, more: int) -> None:
        """A leaf of the newest root or of the one before, sometimes with a wrong amount."""
        trees = self.trees[run]
        if not trees:
            self.finalise(run, "", [100, 50, 0], [])
        if trees:
            epoch = max(0, len(trees) - 1 - back)
            leaf = trees[epoch][place]
            proof = merkle_proof(trees[epoch], leaf)
            self.both(key, "claim", epoch, replace(leaf, amount=max(0, leaf.amount + more)), proof, run=run)

    @rule(run=RUNS, key=st.sampled_from([OWNER, OWNER, STRANGER]), ending=st.sampled_from([False, False, True]))
    def reclaim(self, run: str, key: bytes, ending: bool) -> None:
        if ending:
            self.commit(run, 0, True, True, 0)
            self.registry.skip(16)
        self.both(key, "reclaim", ADDRESSES[9], run=run)

    @rule(run=RUNS, key=st.sampled_from(ANYBODY), node=NODE, wallet=WALLET, amount=AMOUNT)
    def stake(self, run: str, key: bytes, node: str, wallet: bytes, amount: int) -> None:
        self.both(key, "stake", node, address_of(wallet), amount, run=run)

    def _staked(self, run: str, choice: int) -> tuple[str, bytes]:
        """One of the stakes there are, if there are any."""
        held = sorted(self.state(run).stakes) or [(NODES[5], address_of(WALLETS[0]))]
        node, wallet = held[choice % len(held)]
        return node, WALLETS[[address_of(key) for key in WALLETS].index(wallet)]

    @rule(run=RUNS, choice=st.integers(0, 5))
    def unbond(self, run: str, choice: int) -> None:
        node, wallet = self._staked(run, choice)
        self.both(wallet, "unbond", node, run=run)

    @rule(run=RUNS, choice=st.integers(0, 5), patient=MOSTLY)
    def withdraw(self, run: str, choice: int, patient: bool) -> None:
        node, wallet = self._staked(run, choice)
        if patient:
            self.both(wallet, "unbond", node, run=run)
            self.registry.skip(15)
        self.both(wallet, "withdraw", node, run=run)

    # -- nodes

    @rule(
        run=RUNS,
        choice=st.integers(0, 5),
        number=OFFSETS,
        signers=st.lists(st.sampled_from([*VALIDATORS, STRANGER]), max_size=3),
        honest=MOSTLY,
    )
    def strike(self, run: str, choice: int, number: int, signers: list[bytes], honest: bool) -> None:
        node, wallet = self._staked(run, choice)
        count = max(0, self.state(run).strike_count[node] + number)
        strike = Strike(run, node, address_of(wallet), count, 3, digest("evidence"))
        typed, block = strike_typed_data(self.registry.domain, strike), self.registry.next_block
        attestations = self.signed(run, typed, honest, signers)
        self.same(
            lambda: self.model.strike(strike, attestations, block=block),
            lambda: self.registry.put_strike(strike, attestations),
        )

    def _struck(self, run: str) -> str:
        """A node with an open strike, if there is one; sometimes after striking one."""
        held = [node for node, last in self.state(run).strikes.items() if last.is_open]
        if not held:
            self.strike(run, 0, 0, [], True)
        return held[0] if held else NODES[5]

    @rule(run=RUNS, rightly=MOSTLY)
    def dispute(self, run: str, rightly: bool) -> None:
        node = self._struck(run)
        last = self.state(run).strikes.get(node)
        wallet = next((key for key in WALLETS if last and address_of(key) == last.wallet), WALLETS[0])
        self.both(wallet if rightly else STRANGER, "dispute", node, digest("answer"), run=run)

    @rule(run=RUNS, number=OFFSETS, honest=MOSTLY)
    def lift(self, run: str, number: int, honest: bool) -> None:
        node = self._struck(run)
        named = max(0, self.state(run).strike_count[node] - 1 + number)
        typed = lift_typed_data(self.registry.domain, run=run, node=node, number=named)
        self.both(STRANGER, "lift", node, named, self.signed(run, typed, honest, [STRANGER]), run=run)

    @rule(run=RUNS, patient=MOSTLY)
    def settle(self, run: str, patient: bool) -> None:
        node = self._struck(run)
        if patient:
            self.registry.skip(11)
        self.both(STRANGER, "settle", node, run=run)

    @rule(node=st.integers(4, 6), nonce=st.integers(0, 3), linked=st.booleans())
    def register(self, node: int, nonce: int, linked: bool) -> None:
        request = make_registration(
            self.registry.domain, node=node, nonce=nonce, wallet=KEYS[7] if linked else None, claimed=None
        )
        block = self.registry.next_block
        self.same(lambda: self.model.register(request, block=block), lambda: self.registry.register(request))

    @rule(old=st.integers(4, 6), new=st.integers(4, 7), nonce=st.integers(0, 3), linked=st.booleans())
    def rotate(self, old: int, new: int, nonce: int, linked: bool) -> None:
        wallet = KEYS[7] if linked else None
        request = make_rotation(self.registry.domain, old=old, new=new, nonce=nonce, wallet=wallet)
        block = self.registry.next_block
        self.same(lambda: self.model.rotate(request, block=block), lambda: self.registry.rotate(request))

    # -- the owner

    @rule(run=RUNS, key=st.sampled_from([OWNER, OWNER, STRANGER]), quorum=st.sampled_from([2, 2, 1]))
    def propose_validators(self, run: str, key: bytes, quorum: int) -> None:
        """Propose the second set; `signed` knows only two."""
        self.both(key, "propose_validators", tuple(make_operator(index) for index in (4, 5)), quorum, run=run)

    @rule(run=RUNS, patient=MOSTLY)
    def apply_validators(self, run: str, patient: bool) -> None:
        if patient:
            self.propose_validators(run, OWNER, 2)
            self.registry.skip(12)
        self.both(STRANGER, "apply_validators", run=run)

    @rule(run=RUNS, key=st.sampled_from([OWNER, STRANGER]), on=SELDOM)
    def pause(self, run: str, key: bytes, on: bool) -> None:
        self.both(key, "pause", on, run=run)

    # -- what always holds: of the coins after each call, of all else at the end of a sequence

    @invariant()
    def holds_what_it_owes(self) -> None:
        owed = 0
        for state in self.model.runs.values():
            assert state.paid <= state.promised <= state.funds
            owed += state.funds - state.paid + sum(stake.amount for stake in state.stakes.values())
        assert self.registry.chain.balance(self.registry.address) == owed == -sum(self.model.received.values())

    def teardown(self) -> None:
        self.shows_the_same_events()
        self.money_in_is_money_out_and_money_held()
        self.nothing_is_credited_twice()
        self.no_root_without_quorum_and_no_checkpoint_out_of_order()
        self.readers_rebuild_the_state_from_events()

    def shows_the_same_events(self) -> None:
        """The same events as the model, and one for each call that changed anything."""
        calls = [each for each in self.registry.chain.receipts() if each["to"] == self.registry.address]
        assert all(len(each["logs"]) == 1 for each in calls)
        for run in (RUN, OTHER):
            assert self.registry.events(run) == self.state(run).events

    def money_in_is_money_out_and_money_held(self) -> None:
        """Nobody gains except by a claim, a withdrawal or the owner's reclaim."""
        for run in (RUN, OTHER):
            state = self.state(run)
            held = (state.funds, state.promised, state.paid)
            assert self.registry.view("pools", bytes.fromhex(run))[0] == held
        for address in ADDRESSES:
            assert self.registry.coins(address) == self.model.received[address]

    def nothing_is_credited_twice(self) -> None:
        for run in (RUN, OTHER):
            paid = standing.paid_of(self.state(run).events.changes)
            for (role, node, wallet), amount in paid.items():
                place = (ROLES_BY_NUMBER.index(role), public_key_from_node(node), wallet)
                assert self.registry.view("claimed", bytes.fromhex(run), *place) == (amount,)
                newest = [leaf.amount for tree in self.trees[run] for leaf in tree if leaf.role == role]
                assert amount <= max(newest)

    def no_root_without_quorum_and_no_checkpoint_out_of_order(self) -> None:
        for run in (RUN, OTHER):
            state = self.state(run)
            log, terms = state.events, state.terms
            for root in log.roots:
                held = standing.validators_of(terms, log.changes, root.block)
                assert len(set(root.attesters) & {each.operator for each in held.validators}) >= held.quorum
            for place, commit in enumerate(log.commits):
                assert (commit.step, commit.parent) == (
                    place,
                    log.commits[place - 1].manifest if place else ZERO_DIGEST,
                )
                assert commit.term == standing.lease_of(terms, log.commits, log.changes, commit.block).term
            assert [commit.term for commit in log.commits] == sorted(commit.term for commit in log.commits)
            assert not any(commit.final for commit in log.commits[:-1])

    def readers_rebuild_the_state_from_events(self) -> None:
        for run in (RUN, OTHER):
            state, key = self.state(run), bytes.fromhex(run)
            lease = standing.lease_of(state.terms, state.events.commits, state.events.changes)
            term, leader, until, lapse_block = self.registry.view("leases", key)[0]
            assert (lease.term, lease.until, lease.lapse_block) == (term, until, lapse_block)
            assert lease.leader == state.terms.trainers[leader].node
            held = self.registry.view("validators_in_force", key)[0]
            assert standing.validators_of(state.terms, state.events.changes).quorum == held[0]
            assert standing.funds_of(state.events.changes) == self.registry.view("pools", key)[0][0]
            assert standing.stakes_of(state.events.changes) == state.stakes
            strikes = standing.strikes_of(run, state.events.changes)
            ejected = {each.strike.node for each in strikes if each.outcome != "lifted"}
            for node in NODES[5:7]:
                standing_strikes = self.registry.view("standing_strikes", key, public_key_from_node(node))[0]
                assert (standing_strikes > 0) == (node in ejected)


RegistryMachine.TestCase.settings = settings(
    max_examples=SEQUENCES,
    stateful_step_count=ACTIONS,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
TestRegistryMachine = RegistryMachine.TestCase
