"""What the registry's logs and results mean, as records. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from eth_utils.address import to_checksum_address

from ledger import abi
from ledger.errors import LedgerError
from ledger.records import Block, Commit, FinalRoot, Operator, RunTerms
from ledger.rules import RegistrationEvent
from ledger.wallet import NO_ADDRESS, node_from_public_key, public_key_from_node

TOPICS = {abi.event_topic(name): name for name in ("Registered", "Committed", "Finalised")}
"""First topic of each event a reader follows, and its name."""


@dataclass(slots=True)
class EventLog:
    """A run's events in chain order, and how far they go."""

    registrations: list[RegistrationEvent] = field(default_factory=list)
    commits: list[Commit] = field(default_factory=list)
    roots: list[FinalRoot] = field(default_factory=list)

    def forget_from(self, block: int) -> None:
        """Drop what blocks from `block` on said: they are no longer on the chain."""
        self.registrations = [each for each in self.registrations if each.block < block]
        self.commits = [each for each in self.commits if each.block < block]
        self.roots = [each for each in self.roots if each.block < block]

    def is_complete(self) -> bool:
        """Whether no commit or root is missing in between: both are numbered without gaps."""
        steps, epochs = [each.step for each in self.commits], [each.epoch for each in self.roots]
        return steps == list(range(len(steps))) and epochs == list(range(len(epochs)))

    def add(self, logs: Sequence[Mapping[str, Any]]) -> None:
        """Take in logs as JSON-RPC gives them, those known already once.

        Raises LedgerError, with nothing taken in, when one is malformed.
        """
        parsed = [_parse(log) for log in logs]
        _merge(self.registrations, [each for each in parsed if isinstance(each, RegistrationEvent)])
        _merge(self.commits, [each for each in parsed if isinstance(each, Commit)])
        _merge(self.roots, [each for each in parsed if isinstance(each, FinalRoot)])


def parse_block(answer: Mapping[str, Any]) -> Block:
    """A block as JSON-RPC gives it. Raises LedgerError when malformed."""
    try:
        digest = abi.unhex(answer["hash"]).hex()
        return Block(int(answer["number"], 16), digest, int(answer["timestamp"], 16))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise LedgerError("the RPC end-point sent a malformed block") from error


def parse_terms(run: str, held: Sequence[Any], operators: Sequence[Any]) -> RunTerms:
    """Terms from the results of `runs` and `operators`. Raises LedgerError for an unknown run."""
    owner, quorum, checkpoints, max_seconds, round_seconds, created_block, _ = held
    if owner == NO_ADDRESS:
        raise LedgerError(f"the ledger knows no run {run}")
    return RunTerms(
        run=run,
        owner=to_checksum_address(owner),
        validators=tuple(_operator(each) for each in operators[0]),
        trainers=tuple(_operator(each) for each in operators[1]),
        quorum=quorum,
        epoch_checkpoints=checkpoints,
        epoch_max_seconds=max_seconds,
        round_seconds=round_seconds,
        created_block=created_block,
    )


def operator_tuples(operators: Sequence[Operator]) -> list[tuple[bytes, str, str]]:
    """Operators as the contract takes them."""
    return [(public_key_from_node(each.node), each.operator, each.payout) for each in operators]


Event = TypeVar("Event", RegistrationEvent, Commit, FinalRoot)


def _merge(held: list[Event], read: Sequence[Event]) -> None:
    """Add what is not held yet, in the order of blocks."""
    if not read:
        return
    known = {each for each in held if each.block >= read[0].block}
    held += [each for each in dict.fromkeys(read) if each not in known]
    held.sort(key=lambda each: each.block)


def _parse(log: Mapping[str, Any]) -> RegistrationEvent | Commit | FinalRoot:
    try:
        name, block = TOPICS[log["topics"][0]], int(log["blockNumber"], 16)
        fields = abi.decode_event(name, log["topics"], log["data"])
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        raise LedgerError("the RPC end-point sent a malformed log") from error
    if name == "Registered":
        return _registration(fields, block)
    return _commit(fields, block) if name == "Committed" else _root(fields, block)


def _registration(fields: Mapping[str, Any], block: int) -> RegistrationEvent:
    return RegistrationEvent(
        node=node_from_public_key(fields["node"]),
        wallet=_address(fields["wallet"]),
        claimed=_address(fields["claimed"]),
        nonce=fields["nonce"],
        node_signature=fields["node_signature"].hex(),
        block=block,
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
        total=fields["total"],
        blob=fields["blob"].hex(),
        block=block,
        attesters=tuple(to_checksum_address(each) for each in fields["attesters"]),
    )


def _operator(held: Sequence[Any]) -> Operator:
    node, operator, payout = held
    return Operator(node_from_public_key(node), to_checksum_address(operator), to_checksum_address(payout))


def _address(text: str) -> str | None:
    return None if text == NO_ADDRESS else str(to_checksum_address(text))
