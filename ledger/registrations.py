"""Decides which registration of a node is in force, from the registry's events and the nodes' signatures."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from ledger.records import Registration
from ledger.signing import rotation_message
from ledger.wallet import Domain, check_node_signature, registration_message

MAX_NONCE = 2**64 - 1


@dataclass(frozen=True, slots=True)
class RegistrationEvent:
    """A registration as emitted. The contract has checked the wallet's signature; nobody has checked the node's yet."""

    node: str
    wallet: str | None
    claimed: str | None
    nonce: int
    node_signature: str
    block: int
    index: int = 0


@dataclass(frozen=True, slots=True)
class RotationEvent:
    """A rotation as emitted. The contract has checked the wallet's signature, if any;
    nobody has checked the nodes' yet."""

    old_node: str
    new_node: str
    wallet: str | None
    nonce: int
    old_node_signature: str
    new_node_signature: str
    block: int
    index: int = 0


NodeEvent = RegistrationEvent | RotationEvent
_Links = defaultdict[str, list[tuple[int, str | None]]]


class SignedRegistrations:
    """Registrations of one run. Caches each event's signature check, and the result while the events are the same."""

    def __init__(self, *, domain: Domain, run: str) -> None:
        self._domain, self._run = domain, run
        self._judged: dict[NodeEvent, bool] = {}
        self._folded: dict[bool, tuple[int | None, list[NodeEvent], Mapping[str, Registration]]] = {}  # now, and as of

    def in_force(self, events: Sequence[NodeEvent], until: int | None = None) -> Mapping[str, Registration]:
        """Registrations by node, from events in chain order, up to block `until` if given. The
        caller must not modify the result."""
        kept = self._folded.get(until is None)
        if kept is None or kept[0] != until or kept[1] != events:
            counted = [each for each in events if until is None or each.block <= until]
            found = fold_registrations(each for each in counted if self._is_signed(each))
            kept = self._folded[until is None] = (until, list(events), found)
        return kept[2]

    def _is_signed(self, event: NodeEvent) -> bool:
        if event not in self._judged:
            self._judged[event] = is_signed_by_node(event, domain=self._domain, run=self._run)
        return self._judged[event]


def is_signed_by_node(event: NodeEvent, *, domain: Domain, run: str) -> bool:
    """Whether a registration or rotation is signed by the node keys that must sign it."""
    if isinstance(event, RotationEvent):
        return _is_rotation_signed(event, domain=domain, run=run)
    message = registration_message(
        domain, run=run, node=event.node, wallet=event.wallet, claimed=event.claimed, nonce=event.nonce
    )
    return check_node_signature(event.node, message, event.node_signature)


def _is_rotation_signed(event: RotationEvent, *, domain: Domain, run: str) -> bool:
    message = rotation_message(
        domain, run=run, old_node=event.old_node, new_node=event.new_node, wallet=event.wallet, nonce=event.nonce
    )
    if event.wallet is None and not check_node_signature(event.old_node, message, event.old_node_signature):
        return False
    return check_node_signature(event.new_node, message, event.new_node_signature)


def fold_registrations(events: Iterable[NodeEvent]) -> dict[str, Registration]:
    """Registrations in force, by node, from events in chain order whose node signatures are valid.

    The highest nonce wins; among equal ones, the first. The first block never changes. A rotation by the wallet in
    force, or by the old key, moves everything to a key that was never registered; the old key never counts again.
    """
    held: dict[str, Registration] = {}
    retired: set[str] = set()
    links: _Links = defaultdict(list)
    for event in events:
        if isinstance(event, RotationEvent):
            _rotate(held, retired, links, event)
        elif event.node not in retired:
            _register(held, links, event)
    return {node: replace(item, links=tuple(links[node])) for node, item in held.items()}


def _register(held: dict[str, Registration], links: _Links, event: RegistrationEvent) -> None:
    before = held.get(event.node)
    if before is not None and event.nonce <= before.nonce:
        return
    first = before.first_block if before else event.block
    previous = before.previous if before else ()
    held[event.node] = Registration(event.node, event.wallet, event.claimed, event.nonce, first, event.block, previous)
    if before is None or event.wallet != before.wallet:
        links[event.node].append((event.block, event.wallet))


def _rotate(held: dict[str, Registration], retired: set[str], links: _Links, event: RotationEvent) -> None:
    old = held.get(event.old_node)
    if old is None or event.new_node in held or event.new_node in retired:
        return
    # Any wallet can sign for any node; only the one in force counts.
    if event.wallet is not None and event.wallet != old.wallet:
        return
    del held[event.old_node]
    retired.add(event.old_node)
    links[event.new_node] = links.pop(event.old_node)
    # Nonce 0: whatever the new key signs next wins.
    held[event.new_node] = replace(
        old, node=event.new_node, nonce=0, block=event.block, previous=(*old.previous, old.node)
    )
