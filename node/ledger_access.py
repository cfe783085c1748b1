"""Opens a run's ledger for commands and nodes, and adds up what it says about contributions."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ledger.client import LedgerClient
from node.errors import ConfigError
from roles.spec import RunSpec


async def open_ledger(
    spec: RunSpec,
    urls: Sequence[str],
    *,
    operator_key: bytes | None = None,
    state: Path | None = None,
    patience: float | None = None,
) -> LedgerClient:
    """Connect to the contract the spec names and check that it is that one. Raises LedgerError, ConfigError."""
    if not urls:
        raise ConfigError("no ledger end-point is known: add --rpc URL, or use a join string that has rpc=")
    ledger = spec.ledger
    extra = {} if patience is None else {"patience": patience}
    return await LedgerClient.connect(
        urls,
        contract=ledger.contract,
        run=spec.run_id,
        operator_key=operator_key,
        state_dir=state,
        chain_id=ledger.chain_id,
        code_hash=ledger.code_hash,
        deployment_block=ledger.deployment_block_hash,
        **extra,
    )
