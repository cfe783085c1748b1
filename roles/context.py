"""What a role's actor works with in one run: the node composes it, and the actor passes it on to its parts."""

from __future__ import annotations

from dataclasses import dataclass

from roles.announce import Voice
from roles.compute import ComputeThread
from roles.observer import Observer
from roles.ports import Clock, Relays
from roles.spec import RunSpec
from roles.trusted import TrustedState


@dataclass(frozen=True, slots=True)
class RunContext:
    """One node in one run. It holds neither the node's key nor the ledger; parts that need
    those get them separately."""

    spec: RunSpec
    node: str
    trusted: TrustedState
    observer: Observer
    voice: Voice
    relays: Relays
    compute: ComputeThread
    clock: Clock
