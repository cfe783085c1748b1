"""Opens a run for commands that read or move money: its ledger, and relays only if needed.

With the run's spec available (`--spec`, or the node's data folder), the ledger alone is enough. Without it a relay must
supply the spec, so peers must be online.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from ledger.client import LedgerClient
from node.config import NodeConfig
from node.errors import ConfigError
from node.joining import find_join, join_ledger, read_spec_file
from node.secrets import read_operator_key
from node.visitor import FINDING_SECONDS, visit_run
from roles.shardcast.client import RelayClient
from roles.spec import RunSpec


@dataclass(frozen=True, slots=True)
class Purse:
    """A run's ledger, opened with the paying key if one is named. `relays` is None where none were needed."""

    spec: RunSpec
    ledger: LedgerClient
    relays: RelayClient | None


@asynccontextmanager
async def open_purse(config: NodeConfig, *, needs_relays: bool = False) -> AsyncIterator[Purse]:
    """Open the run named in the settings. Raises ConfigError, NodeError or LedgerError with a sentence."""
    spec = None if needs_relays else _known_spec(config)
    if spec is None:
        async with visit_run(config) as visit:
            yield Purse(visit.spec, visit.ledger, visit.relays)
        return
    join = find_join(config)
    ledger = await join_ledger(config, spec, join.rpc, read_operator_key(config), patience=FINDING_SECONDS)
    async with ledger:
        yield Purse(spec, ledger, None)


def must_pay(purse: Purse) -> str:
    """The address that pays. Raises ConfigError when no key is named."""
    if purse.ledger.operator is None:
        raise ConfigError("name the key file of the account that sends this and pays its gas: --operator-key FILE")
    return purse.ledger.operator


def _known_spec(config: NodeConfig) -> RunSpec | None:
    run = find_join(config).run
    if config.spec:
        return read_spec_file(config.spec, run)
    try:
        return read_spec_file(config.home / "spec.json", run)
    except ConfigError:  # missing, or of another run
        return None
