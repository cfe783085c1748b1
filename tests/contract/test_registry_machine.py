"""The contract beside its Python model: any sequence of calls gives the same answers, reasons and events."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from ledger.errors import LedgerRejected
from ledger.model import RegistryModel
from ledger.records import ZERO_DIGEST, Commit
from ledger.wallet import address_of
from tests.contract.harness import (
    KEYS,
    RUN,
    TRAINER,
    VALIDATORS,
    Registry,
    attest,
    digest,
    make_proposal,
    make_registration,
    make_terms,
)

OFFSETS = st.sampled_from([0, 0, 0, 0, 1, -1])


def outcome(call: Callable[[], Any]) -> str:
    """The reason of a refusal, "" for success."""
    try:
        call()
    except LedgerRejected as error:
        return error.reason
    return ""


class RegistryMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.registry = Registry()
        self.model = RegistryModel(self.registry.domain)
        terms = make_terms(epoch_max_seconds=30, round_seconds=5)
        self.model.create_run(terms, block=self.registry.next_block)
        self.registry.create_run(terms)
        self.state = self.model.runs[RUN]

    @rule(seconds=st.integers(1, 40))
    def wait(self, seconds: int) -> None:
        self.registry.skip(seconds)

    @rule(offset=OFFSETS, wrong_parent=OFFSETS, final=st.sampled_from([False] * 9 + [True]), trainer=OFFSETS)
    def commit(self, offset: int, wrong_parent: int, final: bool, trainer: int) -> None:
        commits = self.state.events.commits
        step = max(0, len(commits) + offset)
        last = commits[-1].manifest if commits else ZERO_DIGEST
        commit = Commit(1, step, digest(step), last if wrong_parent == 0 else digest("x"), final, 0, 0)
        key, block = TRAINER if trainer == 0 else KEYS[6], self.registry.next_block
        expected = outcome(lambda: self.model.commit_checkpoint(RUN, commit, sender=address_of(key), block=block))
        got = outcome(
            lambda: self.registry.commit(step, key=key, manifest=commit.manifest, parent=commit.parent, final=final)
        )
        assert got == expected

    @rule(node=st.integers(4, 6), nonce=st.integers(0, 3), linked=st.booleans())
    def register(self, node: int, nonce: int, linked: bool) -> None:
        request = make_registration(
            self.registry.domain, node=node, nonce=nonce, wallet=KEYS[7] if linked else None, claimed=None
        )
        block = self.registry.next_block
        expected = outcome(lambda: self.model.register(request, block=block))
        assert outcome(lambda: self.registry.register(request)) == expected

    @rule(
        epoch=OFFSETS,
        back=st.integers(-1, 12),
        more=st.integers(-1, 5),
        signers=st.lists(st.sampled_from([*VALIDATORS, KEYS[6]]), max_size=3),
        honest=st.booleans(),
    )
    def finalise(self, epoch: int, back: int, more: int, signers: list[bytes], honest: bool) -> None:
        roots, block = self.state.events.roots, self.registry.next_block
        proposal = make_proposal(
            epoch=max(0, len(roots) + epoch),
            parent_root=roots[-1].root if roots else ZERO_DIGEST,
            closing_block=max(0, block.number - back),
            root=digest(("root", len(roots), more)),
            total=max(0, (roots[-1].total if roots else 0) + more),
        )
        keys = VALIDATORS[:2] if honest else signers
        attestations = [attest(self.registry.domain, proposal, key) for key in keys]
        expected = outcome(lambda: self.model.finalise(proposal, attestations, block=block))
        assert outcome(lambda: self.registry.finalise(proposal, attestations)) == expected

    @invariant()
    def shows_the_same_events(self) -> None:
        assert self.registry.events() == self.state.events


RegistryMachine.TestCase.settings = settings(max_examples=25, stateful_step_count=25, deadline=None)
TestRegistryMachine = RegistryMachine.TestCase
