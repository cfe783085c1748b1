"""Every adversary by kind: its engine, what it makes of a ticket, and the reasons for which it may be refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from node.testnet.adversaries import engines, forgeries, hostile_files, weights
from node.testnet.adversaries.forger import Forgery
from node.testnet.adversaries.kinds import KINDS
from roles.inference.engine import Engine
from roles.rules import Reason

NewEngine = Callable[[], Engine]
JOINED = (Reason.JOINED_MISMATCH, Reason.JOINED_UNCERTAIN, Reason.HISTORY_DEVIATES)
"""Additional reasons where the run's spec has a calibration."""
COMPUTED = (Reason.PROOF_MISMATCH, Reason.PROOF_UNCERTAIN, *JOINED)
SAMPLED = (Reason.SAMPLING_MISMATCH, Reason.SAMPLING_UNCERTAIN, Reason.BAD_TERMINATION, Reason.TWO_HUMPED, *JOINED)
EITHER = (*COMPUTED, *SAMPLED)
COPIED = (Reason.WRONG_IDENTITY, Reason.WRONG_PROBLEM, Reason.WRONG_PROMPT, Reason.WRONG_SEED)


@dataclass(frozen=True, slots=True)
class Adversary:
    """One way to cheat. `engine` builds its engine from honest ones, `forgery` makes its submissions, `expects` lists
    the reasons for which these may be refused."""

    kind: str
    expects: tuple[Reason, ...]
    engine: Callable[[NewEngine], Engine] = lambda new: new()
    forgery: Forgery = forgeries.honest

    @property
    def says(self) -> str:
        """A description of what it does."""
        return KINDS[self.kind].says

    @property
    def is_certain(self) -> bool:
        """Whether every one of its submissions is refused."""
        return KINDS[self.kind].is_certain


def _weights(kind: str, alteration: weights.Alteration) -> Adversary:
    return Adversary(kind, EITHER, lambda new: engines.AlteredWeights(new(), alteration))


def _samples(kind: str, **changes: Any) -> Adversary:
    return Adversary(kind, SAMPLED, lambda new: engines.OtherSettings(new(), lambda own: replace(own, **changes)))


def _forges(kind: str, forgery: Forgery, *expects: Reason) -> Adversary:
    return Adversary(kind, expects, forgery=forgery)


def _file(kind: str, bomb: hostile_files.Bomb, reason: Reason = Reason.SCHEMA) -> Adversary:
    return Adversary(kind, (reason,), forgery=forgeries.hostile_file(bomb))


def _hybrid(new: NewEngine) -> Engine:
    return engines.Hybrid(new(), engines.AlteredWeights(new(), weights.every_other_layer()))


def _altered(change: engines.Change) -> Callable[[NewEngine], Engine]:
    return lambda new: engines.Altered(new(), change)


def _states_of(value: float) -> Callable[[NewEngine], Engine]:
    return lambda new: engines.BrokenStates(new(), value)


_ALL = (
    _weights("smaller", weights.every_other_layer()),
    _weights("fewer-layers", weights.fewer_layers(0.9)),
    _weights("int8", weights.quantised(8)),
    _weights("int4", weights.quantised(4)),
    _weights("fp8", weights.eight_bit_float()),
    _weights("other-model", weights.other_weights(0.3)),
    _weights("fine-tuned", weights.low_rank(0.03)),
    Adversary("stale", EITHER, lambda new: engines.FirstWeightsOnly(new())),
    Adversary("other-prompt", EITHER, lambda new: engines.HiddenPrompt(new(), "1+1=")),
    _samples("temperature", temperature=0.6),
    _samples("greedy", temperature=0.0),
    _samples("top-k", top_k=2),
    Adversary("hybrid", SAMPLED, _hybrid),
    Adversary("best-of", SAMPLED, forgery=forgeries.best_of),
    Adversary("early-end", SAMPLED, _altered(engines.ended_early)),
    Adversary("repeating", (*SAMPLED, Reason.DUPLICATE), lambda new: engines.Repeating(new())),
    Adversary("babbling", SAMPLED, lambda new: engines.Babbling(new())),
    Adversary("truncated", (Reason.BAD_TERMINATION,), _altered(engines.cut_off)),
    Adversary("nan-states", COMPUTED, _states_of(float("nan"))),
    Adversary("infinite-states", COMPUTED, _states_of(float("inf"))),
    _forges("random-proofs", forgeries.random_proofs, Reason.PROOF_MALFORMED, Reason.PROOF_MISMATCH),
    _forges("well-formed-proofs", forgeries.well_formed_proofs, Reason.PROOF_MISMATCH),
    _forges("modulus-zero", forgeries.modulus_zero, Reason.PROOF_MALFORMED),
    _forges("missing-proofs", forgeries.missing_proofs, Reason.PROOF_MALFORMED),
    _forges("surplus-proofs", forgeries.surplus_proofs, Reason.PROOF_MALFORMED),
    _forges("others-proofs", forgeries.others_proofs, Reason.PROOF_MISMATCH),
    _forges("copied-proofs", forgeries.copied_proofs, Reason.PROOF_MISMATCH),
    _forges("copied", forgeries.copied, *COPIED),
    _forges("replayed", forgeries.replayed, *COPIED),
    _forges("relabelled", forgeries.relabelled, *COPIED),
    _forges("chosen-prompts", forgeries.chosen_prompts, Reason.WRONG_PROBLEM),
    _forges("altered-prompts", forgeries.other_prompt, Reason.WRONG_PROMPT),
    _forges("chosen-seeds", forgeries.chosen_seeds, Reason.WRONG_SEED),
    _forges("inflated-rewards", forgeries.inflated_rewards, Reason.WRONG_REWARD),
    _forges("wrong-units", forgeries.wrong_units, Reason.WRONG_UNITS),
    _forges("fewer-completions", forgeries.fewer_completions, Reason.BOUNDS),
    _forges("old-checkpoint", forgeries.stale_policy, Reason.STALE_POLICY),
    _forges("own-checkpoint", forgeries.other_policy, Reason.WRONG_POLICY),
    _forges("skipped-index", forgeries.skipped_index, Reason.GAP),
    _forges("not-a-number", forgeries.not_a_number, Reason.SCHEMA),
    _file("cut-file", hostile_files.cut),
    _file("bomb-of-zeros", hostile_files.zeros),
    _file("bomb-of-levels", hostile_files.levels),
    _file("bomb-of-dictionary", hostile_files.dictionary),
    _file("nested-columns", hostile_files.nested),
    _file("million-columns", hostile_files.million_columns),
    _file("endless-list", hostile_files.endless_list),
    _file("oversized", hostile_files.oversized, Reason.BLOB_TOO_LARGE),
)
ADVERSARIES = {item.kind: item for item in _ALL}
