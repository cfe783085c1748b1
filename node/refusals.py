"""Sentences for the contract's short revert reasons, for the person who typed the command. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ledger.errors import LedgerRejected
from node.errors import ConfigError

SENTENCES = {
    "bonded": "the stake is not free yet: intellect-node unbond first, then wait until the time it prints",
    "below the minimum stake": "a stake must come to the run's minimum (rewards.min_stake of its spec)",
    "change must wait": "the announced validators come in force later: see `run validators show`",
    "disputed before": "this strike has been answered already; its window was made longer once",
    "epoch": "this epoch is not final",
    "leaf has no wallet": "what a node earned without a wallet can be claimed once it is linked: intellect-node wallet link",
    "no change waits": "no other validators are announced: run validators propose first",
    "no stake": "this account has no stake behind that node",
    "no strike is open": "no strike against that node is open",
    "node is struck": "the node was ejected: a stake behind it would count for nothing",
    "not the owner": "only the account that created the run may do this",
    "not the wallet": "only the wallet whose stake is at risk may answer the strike: name its key by --operator-key",
    "nothing changes": "it is so already",
    "nothing to pay": "there is nothing to pay",
    "run is paused": "the run's owner has stopped it; claims, unbonding and withdrawals go on",
    "proof": "the proof does not fit the root: the tally is not the one the ledger names",
    "root is overdrawn": "more is claimed than the root promises: the validators signed nonsense",
    "run is not over": "what is left can be taken back only when the run has ended and the time to unbond has passed"
    " (for a run without a final checkpoint, 30 days more)",
    "stake is frozen": "a strike is open: the stake stays until it is lifted or settled (intellect-node strike list)",
    "unbonding": "the stake is being unbonded already; its owner may stake again, which bonds it anew",
    "window is open": "the strike can still be answered or lifted: settle it after the time `strike list` shows",
    "window is over": "the time to answer this strike is over",
    "token transfer": "the token did not move: the account must hold enough of it",
    "too few attestations": "too few validators have signed",
    "quorum": "the quorum must be more than half of the validators, and no more than all of them",
}


@contextmanager
def explained() -> Iterator[None]:
    """Turn a refusal by the contract into a sentence that says what to do. Raises ConfigError."""
    try:
        yield
    except LedgerRejected as error:
        sentence = SENTENCES.get(error.reason)
        if sentence is None:
            raise
        raise ConfigError(f"{sentence} (the ledger says: {error.reason})") from error
