"""Checks before a node opens anything: its settings and its key."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import structlog

from dht.errors import IdentityError, Malformed
from dht.identity import NodeKey
from dht.peers import check_transport
from ledger.changes import ValidatorsProposed
from ledger.errors import WalletError
from ledger.records import Operator, ValidatorSet
from node.actors import check_relay
from node.config import NodeConfig
from node.errors import ConfigError, UsageError
from node.join import JoinString
from node.registration import read_wallet
from node.running import patiently
from node.secrets import read_operator_key
from roles.spec import OperatorSpec, RunSpec

log = structlog.get_logger()


class Appointing(Protocol):
    """The part of a ledger that says who may be a validator, and which operator key it sends with."""

    @property
    def operator(self) -> str | None: ...

    async def validators_at(self, block: int | None = None) -> ValidatorSet: ...

    async def waiting_validators(self) -> ValidatorsProposed | None: ...


def check_settings(config: NodeConfig, join: JoinString) -> None:
    """Check the settings before a key is made or anything is opened. Raises UsageError."""
    try:
        _check(config, join)
    except UsageError:
        raise
    except (ConfigError, IdentityError, Malformed, WalletError) as error:
        raise UsageError(str(error)) from error


def _check(config: NodeConfig, join: JoinString) -> None:
    read_wallet(config)
    read_operator_key(config)
    if config.key is not None or config.key_path.exists():
        NodeKey.load(config.key_path)
    for address in config.announce:
        check_transport(address.partition("/p2p/")[0])
    if config.role == "relay":
        check_relay(config)
    elif not (join.peers or join.relays or config.spec or (config.home / "peers.json").exists()):
        raise ConfigError(
            "nobody to ask about the run: the join string names no peer and no relay; get a whole one "
            "(intellect://RUN?peer=..&rpc=..) from the run's operator, or add --peer"
        )


async def check_place(config: NodeConfig, spec: RunSpec, node: str, ledger: Appointing) -> None:
    """Check that the run names this trainer or validator with the operator key used here: in its spec or,
    for a validator, in a set that the owner has announced since. Raises UsageError, ConfigError when the
    ledger does not say, LedgerError."""
    if config.role not in ("trainer", "validator"):
        return
    named: Sequence[Operator | OperatorSpec] = spec.trainers
    if config.role == "validator":  # needs the run's events, which may be many and take several reads
        hint = "the ledger does not tell who may judge"
        named = await patiently(lambda: _validators(spec, ledger), event="ledger.unreachable", hint=hint)
    expected = next((item.operator for item in named if item.node == node), None)
    if expected is None:
        raise UsageError(f"this node ({node}) is not a {config.role} of the run; its operator names those")
    if ledger.operator is None:
        raise UsageError(f"a {config.role} signs and pays on the ledger: name its operator key by --operator-key")
    if ledger.operator.lower() != expected.lower():
        raise UsageError(f"the operator key is that of {ledger.operator}, the run expects {expected}")


async def _validators(spec: RunSpec, ledger: Appointing) -> Sequence[Operator | OperatorSpec]:
    held, waiting = await ledger.validators_at(), await ledger.waiting_validators()
    return [*held.validators, *(waiting.validators if waiting else ()), *spec.validators]


def load_or_make_key(config: NodeConfig) -> NodeKey:
    """The node's key. Created at the first start in the data folder, never at a path that was
    named. Raises IdentityError."""
    path = config.key_path
    if config.key is None and not path.exists():
        key = NodeKey.generate()
        key.save(path)
        log.info("key.made", file=str(path), node=key.node)
        return key
    return NodeKey.load(path)
