"""Parses the registry's logs and results into records. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from eth_utils.address import to_checksum_address

from ledger import abi, changes
from ledger.answers import place
from ledger.changes import Change
from ledger.errors import LedgerError
from ledger.records import ROLES_BY_NUMBER, Commit, FinalRoot, Operator, RunTerms
from ledger.registrations import NodeEvent, RegistrationEvent, RotationEvent
from ledger.wallet import NO_ADDRESS, node_from_public_key, public_key_from_node

TOPICS = {abi.event_topic(name): name for name in abi.event_names() if name != "RunCreated"}
"""Name of each event that a reader follows, by its first topic."""

Event = TypeVar("Event", NodeEvent, Commit, FinalRoot, Change)


@dataclass(slots=True)
class EventLog:
    """A run's events in chain order: registrations and rotations, commits, roots, and all others."""

    registrations: list[NodeEvent] = field(default_factory=list)
    commits: list[Commit] = field(default_factory=list)
    roots: list[FinalRoot] = field(default_factory=list)
    changes: list[Change] = field(default_factory=list)

    def forget_from(self, block: int) -> None:
        """Drop the events of blocks from `block` on, which are no longer on the chain."""
        self.registrations = [each for each in self.registrations if each.block < block]
        self.commits = [each for each in self.commits if each.block < block]
        self.roots = [each for each in self.roots if each.block < block]
        self.changes = [each for each in self.changes if each.block < block]

    def until(self, block: int) -> EventLog:
        """The events of blocks up to and including `block`."""
        log = EventLog(self.registrations, self.commits, self.roots, self.changes)
        log.forget_from(block + 1)
        return log

    def is_complete(self) -> bool:
        """Whether the events that are numbered consecutively have no gaps: commits, roots, each
        node's strikes, validator sets."""
        steps, epochs = [each.step for each in self.commits], [each.epoch for each in self.roots]
        if steps != list(range(len(steps))) or epochs != list(range(len(epochs))):
            return False
        strikes: Counter[str] = Counter()
        sets = 0
        for change in self.changes:
            if isinstance(change, changes.Struck):
                if change.number != strikes[change.node]:
                    return False
                strikes[change.node] += 1
            elif isinstance(change, changes.ValidatorsProposed):
                sets += 1
                if change.number != sets:
                    return False
        return True

    def add(self, logs: Sequence[Mapping[str, Any]]) -> None:
        """Add logs in JSON-RPC form. Logs already known are not added twice.

        Raises LedgerError, with nothing added, when one is malformed.
        """
        self._add([_parse(log) for log in logs])

    def replace_from(self, block: int, logs: Sequence[Mapping[str, Any]]) -> None:
        """Replace the events of blocks from `block` on with those in `logs`. Raises
        LedgerError, with nothing changed."""
        parsed = [_parse(log) for log in logs]
        self.forget_from(block)
        self._add(parsed)

    def _add(self, parsed: Sequence[NodeEvent | Commit | FinalRoot | Change]) -> None:
        _merge(self.registrations, [e for e in parsed if isinstance(e, RegistrationEvent | RotationEvent)], _place)
        _merge(self.commits, [e for e in parsed if isinstance(e, Commit)], lambda e: (e.block, e.step))
        _merge(self.roots, [e for e in parsed if isinstance(e, FinalRoot)], lambda e: (e.block, e.epoch))
        _merge(self.changes, [e for e in parsed if isinstance(e, Change)], _place)


def parse_terms(run: str, held: Sequence[Any], operators: Sequence[Any]) -> RunTerms:
    """Terms from the results of `runs` and `operators`. Raises LedgerError for an unknown run."""
    owner, terms, created_block, _ = held
    if owner == NO_ADDRESS:
        raise LedgerError(f"the ledger knows no run {run}")
    *numbers, token = terms
    fields = dict(zip(TERM_NUMBERS, numbers, strict=True))
    return RunTerms(
        run=run,
        owner=to_checksum_address(owner),
        validators=parse_operators(operators[0]),
        trainers=parse_operators(operators[1]),
        created_block=created_block,
        token=_address(token),
        **fields,
    )


def term_tuple(terms: RunTerms) -> tuple[int | str, ...]:
    """Terms as `create_run` takes them."""
    return (*(getattr(terms, name) for name in TERM_NUMBERS), terms.token or NO_ADDRESS)


TERM_NUMBERS = (
    "quorum",
    "epoch_checkpoints",
    "epoch_max_seconds",
    "round_seconds",
    "lease_seconds",
    "takeover_blocks",
    "min_stake",
    "unbond_seconds",
    "dispute_seconds",
    "change_seconds",
    "epoch_budget",
)
"""Fields of the contract's `Terms` before the token, in its order."""


def parse_operators(held: Sequence[Any]) -> tuple[Operator, ...]:
    """Operators in the form the contract returns."""
    return tuple(_operator(each) for each in held)


def operator_tuples(operators: Sequence[Operator]) -> list[tuple[bytes, str, str]]:
    """Operators in the form the contract takes."""
    return [(public_key_from_node(each.node), each.operator, each.payout) for each in operators]


def _merge(held: list[Event], read: Sequence[Event], place: Callable[[Event], tuple[int, int]]) -> None:
    """Add the events that are not held yet, in chain order."""
    if not read:
        return
    first = min(each.block for each in read)
    known = {each for each in held if each.block >= first}
    held += [each for each in dict.fromkeys(read) if each not in known]
    held.sort(key=place)


def _place(event: NodeEvent | Change) -> tuple[int, int]:
    return event.block, event.index


def _parse(log: Mapping[str, Any]) -> NodeEvent | Commit | FinalRoot | Change:
    try:
        name, block, index = TOPICS[log["topics"][0]], place(log["blockNumber"]), place(log["logIndex"])
        fields = abi.decode_event(name, log["topics"], log["data"])
        fields.pop("run")
        match name:
            case "Registered":
                return _registration(fields, block, index)
            case "Rotated":
                return _rotation(fields, block, index)
            case "Committed":
                return _commit(fields, block)
            case "Finalised":
                return _root(fields, block)
        plain = {each: _plain(each, value) for each, value in fields.items()}
        return CHANGES[name](**plain, block=block, index=index)
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        raise LedgerError("the RPC end-point sent a malformed log") from error


CHANGES: Mapping[str, Callable[..., Change]] = {
    each.__name__: each
    for each in (
        changes.Renewed,
        changes.LapseReported,
        changes.TakenOver,
        changes.Funded,
        changes.Reclaimed,
        changes.Claimed,
        changes.Staked,
        changes.Unbonded,
        changes.Withdrawn,
        changes.Struck,
        changes.Disputed,
        changes.Lifted,
        changes.Settled,
        changes.ValidatorsProposed,
        changes.ValidatorsApplied,
        changes.Paused,
    )
}
"""Events whose fields match a record of the same name."""


def _plain(name: str, value: Any) -> Any:
    """A field of an event in the form that records use."""
    match name:
        case "node":
            return node_from_public_key(value)
        case "wallet":
            return _address(value)
        case "sender" | "to" | "reporter":
            return to_checksum_address(value)
        case "role":
            return ROLES_BY_NUMBER[value]
        case "evidence" | "counter_evidence":
            return value.hex()
        case "attesters":
            return tuple(to_checksum_address(each) for each in value)
        case "validators":
            return parse_operators(value)
    return value


def _registration(fields: Mapping[str, Any], block: int, index: int) -> RegistrationEvent:
    return RegistrationEvent(
        node=node_from_public_key(fields["node"]),
        wallet=_address(fields["wallet"]),
        claimed=_address(fields["claimed"]),
        nonce=fields["nonce"],
        node_signature=fields["node_signature"].hex(),
        block=block,
        index=index,
    )


def _rotation(fields: Mapping[str, Any], block: int, index: int) -> RotationEvent:
    return RotationEvent(
        old_node=node_from_public_key(fields["old_node"]),
        new_node=node_from_public_key(fields["new_node"]),
        wallet=_address(fields["wallet"]),
        nonce=fields["nonce"],
        old_node_signature=fields["old_node_signature"].hex(),
        new_node_signature=fields["new_node_signature"].hex(),
        block=block,
        index=index,
    )


def _commit(fields: Mapping[str, Any], block: int) -> Commit:
    return Commit(
        term=fields["term"],
        step=fields["step"],
        manifest=fields["manifest"].hex(),
        parent=fields["parent"].hex(),
        final=fields["final"],
        block=block,
        timestamp=fields["timestamp"],
    )


def _root(fields: Mapping[str, Any], block: int) -> FinalRoot:
    return FinalRoot(
        epoch=fields["epoch"],
        round=fields["round"],
        closing_block=fields["closing_block"],
        root=fields["root"].hex(),
        total=fields["units"],
        amount=fields["amount"],
        blob=fields["blob"].hex(),
        block=block,
        attesters=tuple(to_checksum_address(each) for each in fields["attesters"]),
    )


def _operator(held: Sequence[Any]) -> Operator:
    node, operator, payout = held
    return Operator(node_from_public_key(node), to_checksum_address(operator), to_checksum_address(payout))


def _address(text: str) -> str | None:
    return None if text == NO_ADDRESS else str(to_checksum_address(text))
