"""Ways in which a submission can be wrong although it was computed honestly, or was not
computed at all: one function each."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from dht.encoding import ZERO_DIGEST, digest
from node.testnet.adversaries.forger import Forger
from node.testnet.adversaries.hostile_files import Bomb
from roles.rollouts.schema import RolloutRow
from roles.toploc.polynomial import PRIME
from roles.worker.generation import Made, Ticket

BEST_OF = 4
SEARCHED = 256
"""Problems that an adversary searches for an easy one."""


def honest(forger: Forger, ticket: Ticket) -> Made:
    """Forges nothing: the engine cheats."""
    return forger.honest(ticket)


# -- what was asked -----------------------------------------------------------------------------------------------------


def chosen_prompts(forger: Forger, ticket: Ticket) -> Made:
    """Answers the problem with the shortest prompt instead of the assigned ones."""
    made = forger.honest(ticket)
    file = forger.open(made)
    asked = {row.problem_id for row in file.rows}
    others = [number for number in range(min(SEARCHED, forger.task.size)) if number not in asked]
    easy = min(others, key=lambda number: len(forger.task.prompt(number)))
    rows = [replace(row, problem_id=easy, prompt=forger.prompt(easy, row.target_length)) for row in file.rows]
    return forger.close(made, replace(file, rows=tuple(forger.resampled(rows))))


def other_prompt(forger: Forger, ticket: Ticket) -> Made:
    """Answers another prompt under the assigned problem's number."""
    made = forger.honest(ticket)
    file = forger.open(made)
    rows = [replace(row, prompt=row.prompt[:-1] if len(row.prompt) > 1 else row.prompt * 2) for row in file.rows]
    return forger.close(made, replace(file, rows=tuple(forger.resampled(rows))))


def chosen_seeds(forger: Forger, ticket: Ticket) -> Made:
    """Samples with seeds of its own, and says so."""
    made = forger.honest(ticket)
    file = forger.open(made)
    rows = [replace(row, seed=row.seed ^ 1) for row in file.rows]
    return forger.close(made, replace(file, rows=tuple(forger.resampled(rows))))


def best_of(forger: Forger, ticket: Ticket) -> Made:
    """Samples each completion four times, and submits the best one under the assigned seed."""
    made = forger.honest(ticket)
    file = forger.open(made)
    tries = [list(file.rows)]
    for number in range(1, BEST_OF):
        tries.append(forger.resampled(file.rows, [_other_seed(row.seed, number) for row in file.rows]))
    best = tuple(max(items, key=lambda row: (row.reward, -len(row.output))) for items in zip(*tries, strict=True))
    return forger.close(made, replace(file, rows=best))


def _other_seed(seed: int, number: int) -> int:
    return int.from_bytes(hashlib.sha256(f"{seed}/{number}".encode()).digest()[:7], "big")


# -- what is claimed ----------------------------------------------------------------------------------------------------


def inflated_rewards(forger: Forger, ticket: Ticket) -> Made:
    """Claims that every answer is right. Where all were, claims that the first is half right (so that
    the group has an advantage)."""
    made = forger.honest(ticket)
    file = forger.open(made)
    claimed = [1.0] * len(file.rows)
    if all(row.reward == 1.0 for row in file.rows):
        claimed[0] = 0.5
    rows = tuple(replace(row, reward=reward) for row, reward in zip(file.rows, claimed, strict=True))
    return forger.close(made, replace(file, rows=rows))


def wrong_units(forger: Forger, ticket: Ticket) -> Made:
    """Signs for more tokens than it generated."""
    made = forger.honest(ticket)
    return forger.sign(made, made.blob, tokens=made.submission.tokens + 100)


def fewer_completions(forger: Forger, ticket: Ticket) -> Made:
    """Omits the last completion, but signs the spec's counts."""
    made = forger.honest(ticket)
    file = forger.open(made)
    return forger.close(made, replace(file, rows=file.rows[:-1]))


def stale_policy(forger: Forger, ticket: Ticket) -> Made:
    """Claims to have used the checkpoint that this step itself produces."""
    made = forger.honest(ticket)
    file = replace(forger.open(made), policy_step=ticket.step)
    return forger.close(made, file, policy_step=ticket.step)


def other_policy(forger: Forger, ticket: Ticket) -> Made:
    """Names other weights as the policy."""
    made = forger.honest(ticket)
    own = digest("adversary", made.submission.policy)
    return forger.close(made, replace(forger.open(made), policy=own), policy=own)


def skipped_index(forger: Forger, ticket: Ticket) -> Made:
    """Pretends that an index with a bad result never existed, by restarting the chain of predecessors."""
    made = forger.honest(ticket)
    return forger.sign(made, made.blob, predecessor=digest("adversary", ticket.predecessor))


# -- proofs -------------------------------------------------------------------------------------------------------------


def random_proofs(forger: Forger, ticket: Ticket) -> Made:
    """Random bytes of the right length."""
    return forger.spoil(ticket, lambda row: replace(row, proof=_noise(row, len(row.proof))))


def well_formed_proofs(forger: Forger, ticket: Ticket) -> Made:
    """Random coefficients under a modulus that a prover may use."""
    size = 2 * (forger.spec.checks.topk + 1)
    return forger.spoil(ticket, lambda row: replace(row, proof=_well_formed(row, size)))


def modulus_zero(forger: Forger, ticket: Ticket) -> Made:
    """Proofs whose modulus is 0, by which the reference implementation divides."""
    size = 2 * (forger.spec.checks.topk + 1)
    return forger.spoil(ticket, lambda row: replace(row, proof=_with_moduli(row.proof, size, b"\0\0")))


def missing_proofs(forger: Forger, ticket: Ticket) -> Made:
    """No proofs."""
    return forger.spoil(ticket, lambda row: replace(row, proof=b""))


def surplus_proofs(forger: Forger, ticket: Ticket) -> Made:
    """One proof record more than there are chunks, if the file may hold it; otherwise one less."""
    size = 2 * (forger.spec.checks.topk + 1)
    most = -(-forger.spec.sampling.max_tokens // forger.spec.checks.chunk) * size
    return forger.spoil(
        ticket,
        lambda row: replace(
            row, proof=(row.proof + row.proof[:size])[:most] if len(row.proof) < most else row.proof[size:]
        ),
    )


def others_proofs(forger: Forger, ticket: Ticket) -> Made:
    """Proofs of other completions in the same submission, taken in reverse order."""
    made = forger.honest(ticket)
    file = forger.open(made)
    proofs = [row.proof for row in file.rows]
    rows = [
        replace(row, proof=_fitted(proof, len(row.proof)))
        for row, proof in zip(file.rows, reversed(proofs), strict=True)
    ]
    return forger.close(made, replace(file, rows=tuple(rows)))


def copied_proofs(forger: Forger, ticket: Ticket) -> Made:
    """Proofs of another node's submission in the same step."""
    made, file = forger.honest(ticket), forger.open(forger.honest(_neighbours(ticket)))
    own = forger.open(made)
    rows = [
        replace(row, proof=_fitted(theirs.proof, len(row.proof)))
        for row, theirs in zip(own.rows, file.rows, strict=True)
    ]
    return forger.close(made, replace(own, rows=tuple(rows)))


# -- work of others, and of before --------------------------------------------------------------------------------------


def copied(forger: Forger, ticket: Ticket) -> Made:
    """Another node's whole file, under its own name."""
    theirs = forger.honest(_neighbours(ticket))
    named = replace(forger.open(theirs), index=ticket.index)
    return forger.close(theirs, named, index=ticket.index, predecessor=ticket.predecessor)


def replayed(forger: Forger, ticket: Ticket) -> Made:
    """The blob it submitted first, again."""
    before = _before(forger, ticket)
    return forger.sign(before, before.blob, predecessor=ticket.predecessor, **_place(forger, ticket))


def relabelled(forger: Forger, ticket: Ticket) -> Made:
    """What it submitted first, with the new place written into every row."""
    before, place = _before(forger, ticket), _place(forger, ticket)
    return forger.close(before, replace(forger.open(before), **place), predecessor=ticket.predecessor, **place)


def _before(forger: Forger, ticket: Ticket) -> Made:
    return forger.past[0] if forger.past else forger.honest(_neighbours(ticket))


def _place(forger: Forger, ticket: Ticket) -> dict[str, Any]:
    policy = forger.loaded
    named = {"policy": policy.manifest, "policy_step": policy.step} if policy else {}
    return {"step": ticket.step, "index": ticket.index, **named}


# -- files --------------------------------------------------------------------------------------------------------------


def hostile_file(bomb: Bomb) -> Callable[[Forger, Ticket], Made]:
    """A file that is not a rollout file, or one that is expensive to read."""

    def forge(forger: Forger, ticket: Ticket) -> Made:
        made = forger.honest(ticket)
        return forger.sign(made, bomb(forger.open(made)))

    return forge


def not_a_number(forger: Forger, ticket: Ticket) -> Made:
    """Log-probabilities that are NaN, and an infinite reward."""
    return forger.spoil(
        ticket, lambda row: replace(row, reward=float("inf"), output_logprobs=(float("nan"),) * len(row.output))
    )


def _neighbours(ticket: Ticket) -> Ticket:
    """What another node was assigned in the same step."""
    return replace(ticket, seed=digest("adversary", ticket.seed), index=ticket.index + 1, predecessor=ZERO_DIGEST)


def _noise(row: RolloutRow, size: int) -> bytes:
    return hashlib.shake_128(row.seed.to_bytes(8, "big")).digest(size)


def _well_formed(row: RolloutRow, size: int) -> bytes:
    words = [int.from_bytes(pair, "big") for pair in zip(*[iter(_noise(row, len(row.proof)))] * 2, strict=True)]
    proof = b"".join((word % PRIME).to_bytes(2, "big") for word in words)
    return _with_moduli(proof, size, PRIME.to_bytes(2, "big"))


def _with_moduli(proof: bytes, size: int, modulus: bytes) -> bytes:
    return b"".join(modulus + proof[start + 2 : start + size] for start in range(0, len(proof), size))


def _fitted(proof: bytes, length: int) -> bytes:
    """Another completion's proof, truncated or repeated to this one's length."""
    return (proof * (length // max(1, len(proof)) + 1))[:length]
