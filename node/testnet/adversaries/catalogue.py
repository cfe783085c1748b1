"""Every adversary by its kind: what it does, and for which reasons it may be refused."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from node.errors import UsageError
from node.testnet.adversaries import engines, forgeries, hostile_files, weights
from node.testnet.adversaries.forger import Forgery
from roles.inference.engine import Engine
from roles.rules import Reason

NewEngine = Callable[[], Engine]
COMPUTED = (Reason.PROOF_MISMATCH, Reason.PROOF_UNCERTAIN)
SAMPLED = (Reason.SAMPLING_MISMATCH, Reason.SAMPLING_UNCERTAIN, Reason.BAD_TERMINATION, Reason.TWO_HUMPED)
EITHER = (*COMPUTED, *SAMPLED)
COPIED = (Reason.WRONG_IDENTITY, Reason.WRONG_PROBLEM, Reason.WRONG_PROMPT, Reason.WRONG_SEED)


@dataclass(frozen=True, slots=True)
class Adversary:
    """One way to cheat. `engine` makes its engine out of honest ones, `forgery` its submissions.

    `is_certain`: every submission of it is refused, whatever the model; the others are found by statistics.
    """

    kind: str
    says: str
    expects: tuple[Reason, ...]
    engine: Callable[[NewEngine], Engine] = lambda new: new()
    forgery: Forgery = forgeries.honest
    is_certain: bool = True


def _runs(
    kind: str, says: str, engine: Callable[[NewEngine], Engine], expects: tuple[Reason, ...] = EITHER
) -> Adversary:
    return Adversary(kind, says, expects, engine=engine, is_certain=False)


def _weights(kind: str, says: str, alteration: weights.Alteration) -> Adversary:
    return _runs(kind, says, lambda new: engines.AlteredWeights(new(), alteration))


def _hybrid(kind: str, says: str, alteration: weights.Alteration) -> Adversary:
    return _runs(kind, says, lambda new: engines.Hybrid(new(), engines.AlteredWeights(new(), alteration)), SAMPLED)


def _samples(kind: str, says: str, **changes: float) -> Adversary:
    return _runs(kind, says, lambda new: engines.OtherSettings(new(), lambda own: replace(own, **changes)), SAMPLED)


def _forges(kind: str, forgery: Forgery, *expects: Reason) -> Adversary:
    return Adversary(kind, (forgery.__doc__ or "").strip(), expects, forgery=forgery)


def _file(kind: str, bomb: hostile_files.Bomb, *expects: Reason) -> Adversary:
    return Adversary(kind, (bomb.__doc__ or "").strip(), expects, forgery=forgeries.hostile_file(bomb))


_ALL = (
    _weights("smaller", "runs a model of half the depth", weights.every_other_layer()),
    _weights("fewer-layers", "leaves the last tenth of the layers out, at least one", weights.fewer_layers(0.9)),
    _weights("int8", "runs weights rounded to 8 bits", weights.quantised(8)),
    _weights("int4", "runs weights rounded to 4 bits", weights.quantised(4)),
    _weights("fp8", "runs weights rounded to 8-bit floating point", weights.eight_bit_float()),
    _weights("other-model", "runs other weights of the same shape", weights.other_weights(0.3)),
    _weights("fine-tuned", "runs a copy with a small change of low rank", weights.low_rank(0.03)),
    _runs("stale", "keeps the first weights it got, and names the newest", lambda new: engines.FirstWeightsOnly(new())),
    _runs("other-prompt", "puts words of its own before the prompt", lambda new: engines.HiddenPrompt(new(), "1+1=")),
    _samples("temperature", "samples at three fifths of the temperature", temperature=0.6),
    _samples("greedy", "takes the likeliest token", temperature=0.0),
    _samples("top-k", "samples from the two likeliest tokens", top_k=2),
    _hybrid("hybrid", "lets a model of half the depth decode, and the right one prefill", weights.every_other_layer()),
    Adversary("best-of", "hands in the luckiest of four samples", SAMPLED, forgery=forgeries.best_of, is_certain=False),
    _runs(
        "early-end", "ends completions in the middle", lambda new: engines.Altered(new(), engines.ended_early), SAMPLED
    ),
    _runs(
        "repeating",
        "hands in one completion for the whole group",
        lambda new: engines.Repeating(new()),
        (*SAMPLED, Reason.DUPLICATE),
    ),
    Adversary(
        "babbling", "any tokens, with the right model's proofs", SAMPLED, engine=lambda new: engines.Babbling(new())
    ),
    Adversary(
        "truncated",
        "cuts completions, and calls them complete",
        (Reason.BAD_TERMINATION,),
        engine=lambda new: engines.Altered(new(), engines.cut_off),
    ),
    Adversary(
        "nan-states",
        "proves states that are no numbers",
        COMPUTED,
        engine=lambda new: engines.BrokenStates(new(), float("nan")),
    ),
    Adversary(
        "infinite-states",
        "proves states without bound",
        COMPUTED,
        engine=lambda new: engines.BrokenStates(new(), float("inf")),
    ),
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
    _file("cut-file", hostile_files.cut, Reason.SCHEMA),
    _file("bomb-of-zeros", hostile_files.zeros, Reason.SCHEMA),
    _file("bomb-of-levels", hostile_files.levels, Reason.SCHEMA),
    _file("bomb-of-dictionary", hostile_files.dictionary, Reason.SCHEMA),
    _file("nested-columns", hostile_files.nested, Reason.SCHEMA),
    _file("million-columns", hostile_files.million_columns, Reason.SCHEMA),
    _file("endless-list", hostile_files.endless_list, Reason.SCHEMA),
    _file("oversized", hostile_files.oversized, Reason.BLOB_TOO_LARGE),
)
ADVERSARIES = {item.kind: item for item in _ALL}


def find_adversaries(words: Iterable[str]) -> tuple[Adversary, ...]:
    """The adversaries of these kinds. Raises UsageError with the nearest known kind."""
    found = []
    for word in words:
        if word not in ADVERSARIES:
            close = difflib.get_close_matches(word, ADVERSARIES, n=1)
            known = f"did you mean {close[0]}?" if close else f"known: {', '.join(ADVERSARIES)}"
            raise UsageError(f"--adversary {word[:64]}: no such kind; {known}")
        found.append(ADVERSARIES[word])
    return tuple(found)
