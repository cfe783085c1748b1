"""The kinds of adversaries, with names and descriptions. Light: the command line imports it without loading a model."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from node.errors import UsageError


@dataclass(frozen=True, slots=True)
class Kind:
    """What an adversary does. `is_certain`: every one of its submissions is refused, whatever the model. The others are
    detected statistically, or not at all."""

    says: str
    is_certain: bool = True


KINDS: Mapping[str, Kind] = {
    "smaller": Kind("runs a model of half the depth", is_certain=False),
    "fewer-layers": Kind("leaves the last tenth of the layers out, at least one", is_certain=False),
    "int8": Kind("runs weights rounded to 8 bits", is_certain=False),
    "int4": Kind("runs weights rounded to 4 bits", is_certain=False),
    "fp8": Kind("runs weights rounded to 8-bit floating point", is_certain=False),
    "other-model": Kind("runs other weights of the same shape", is_certain=False),
    "fine-tuned": Kind("runs a copy with a small change of low rank", is_certain=False),
    "stale": Kind("keeps the first weights it got, and names the newest", is_certain=False),
    "other-prompt": Kind("puts words of its own before the prompt", is_certain=False),
    "temperature": Kind("samples at three fifths of the temperature", is_certain=False),
    "greedy": Kind("takes the likeliest token", is_certain=False),
    "top-k": Kind("samples from the two likeliest tokens", is_certain=False),
    "hybrid": Kind("lets a model of half the depth decode, and the right one prefill", is_certain=False),
    "best-of": Kind("hands in the luckiest of four samples", is_certain=False),
    "early-end": Kind("ends completions in the middle", is_certain=False),
    "repeating": Kind("hands in one completion for the whole group", is_certain=False),
    "babbling": Kind("says any tokens at all, with the right model's proofs of them"),
    "truncated": Kind("cuts completions, and calls them complete"),
    "nan-states": Kind("proves states that are no numbers"),
    "infinite-states": Kind("proves states without bound"),
    "random-proofs": Kind("hands in random bytes as proofs"),
    "well-formed-proofs": Kind("hands in random proofs under a modulus that a prover may use"),
    "modulus-zero": Kind("hands in proofs whose modulus is 0, by which the reference divides"),
    "missing-proofs": Kind("hands in no proofs"),
    "surplus-proofs": Kind("hands in a proof too many, or one too few"),
    "others-proofs": Kind("hands in the proofs of another completion of its own"),
    "copied-proofs": Kind("hands in the proofs of another node's submission"),
    "copied": Kind("hands in another node's file under its own name"),
    "replayed": Kind("hands in its first file again and again"),
    "relabelled": Kind("hands in its first rows again, with the new place written into them"),
    "chosen-prompts": Kind("answers the problem with the shortest prompt instead of those assigned"),
    "altered-prompts": Kind("answers another prompt under the assigned problem's number"),
    "chosen-seeds": Kind("samples with seeds of its own, and says so"),
    "inflated-rewards": Kind("calls every answer right (or, where all were, the first one wrong)"),
    "wrong-units": Kind("signs for more tokens than it made"),
    "fewer-completions": Kind("leaves the last completion out, and signs the spec's counts"),
    "old-checkpoint": Kind("says it used the checkpoint that this step itself makes"),
    "own-checkpoint": Kind("names weights of its own as the policy"),
    "skipped-index": Kind("leaves out an index that went badly"),
    "not-a-number": Kind("hands in log-probabilities that are not numbers, and endless rewards"),
    "cut-file": Kind("hands in half of a file"),
    "bomb-of-zeros": Kind("hides 200 MB of zeros in some kilobytes"),
    "bomb-of-levels": Kind("hides twenty million tokens in one row"),
    "bomb-of-dictionary": Kind("hides a text of a megabyte behind a number in every row"),
    "nested-columns": Kind("nests columns 200 deep"),
    "million-columns": Kind("names a million columns in eight bytes each"),
    "endless-list": Kind("says in a few bytes that a list of four thousand million entries follows"),
    "oversized": Kind("hands in more bytes than any run takes"),
}


def check_kinds(words: Iterable[str]) -> None:
    """Raises UsageError for an unknown kind, suggesting the nearest."""
    for word in words:
        if word not in KINDS:
            close = difflib.get_close_matches(word, KINDS, n=1)
            hint = f"did you mean {close[0]}?" if close else "intellect-node testnet --adversary list prints them"
            raise UsageError(f"--adversary {word[:64]}: there is no such kind; {hint}")
