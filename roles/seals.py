"""Sealed verdicts: a validator commits to its verdict before it can read the others'. Pure.

The seal of a verdict is published first. The verdict then opens it with its salt and lists the seals that
its author had seen by then. A verdict earns only if another validator's opening lists its seal, so a copier
is too late to be listed.
"""

from __future__ import annotations

import secrets
from collections.abc import Collection, Iterable, Mapping

from dht.encoding import digest
from roles.messages import Verdict

SALT_BYTES = 16
HALF, MOST_SEEN = 32, 32


def new_salt() -> str:
    """A fresh random salt, in hexadecimal."""
    return secrets.token_hex(SALT_BYTES)


def seal_of(verdict: Verdict, validator: str) -> str:
    """The seal that this validator's verdict opens: a digest of the outcome and the reason."""
    return digest("seal/1", validator, verdict.submission, verdict.outcome, verdict.reason, verdict.salt)


def earning_validators(verdicts: Mapping[str, Verdict], *, sealed: bool) -> frozenset[str]:
    """The validators whose verdicts on one submission earn: all of them in a run without seals, else those whose seal
    another validator's opening lists."""
    if not sealed:
        return frozenset(verdicts)
    return frozenset(
        name
        for name, verdict in verdicts.items()
        if verdict.salt and _is_listed(seal_of(verdict, name), _others(verdicts, name))
    )


def _others(verdicts: Mapping[str, Verdict], name: str) -> Iterable[Collection[str]]:
    return (verdict.seen for other, verdict in verdicts.items() if other != name)


def _is_listed(seal: str, lists: Iterable[Collection[str]]) -> bool:
    return any(seal[:HALF] in seen for seen in lists)


def seen_seals(seals: Mapping[str, str], validator: str) -> tuple[str, ...]:
    """The other validators' seals that this validator's opening lists, the first half of each. If there are more than
    fit, validators list different ones, so that every seal is listed by some of them."""
    others = {seal for name, seal in seals.items() if name != validator}
    chosen = sorted(others, key=lambda seal: digest("seal-order/1", validator, seal))[:MOST_SEEN]
    return tuple(sorted(seal[:HALF] for seal in chosen))
