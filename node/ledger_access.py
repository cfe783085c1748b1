"""Opens a run's ledger for commands and nodes, with the caution about its chain that the settings ask for."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ledger.client import LedgerClient
from ledger.policy import GWEI, ChainPolicy
from ledger.rpc import PATIENCE_SECONDS
from node.config import NodeConfig
from node.defaults import CONFIRMATIONS, DEVELOPMENT_CHAINS, MAX_FEE_GWEI
from node.errors import ConfigError
from roles.spec import RunSpec


async def open_ledger(
    spec: RunSpec,
    urls: Sequence[str],
    *,
    operator_key: bytes | None = None,
    state: Path | None = None,
    patience: float = PATIENCE_SECONDS,
    policy: ChainPolicy | None = None,
) -> LedgerClient:
    """Connect to the contract that the spec names, and check that it is that one. Raises LedgerError, ConfigError."""
    if not urls:
        raise ConfigError("no ledger end-point is known: add --rpc URL, or use a join string that has rpc=")
    ledger = spec.ledger
    return await LedgerClient.connect(
        urls,
        contract=ledger.contract,
        run=spec.run_id,
        operator_key=operator_key,
        state_dir=state,
        chain_id=ledger.chain_id,
        code_hash=ledger.code_hash,
        deployment_block=ledger.deployment_block_hash,
        patience=patience,
        policy=policy or default_policy(ledger.chain_id),
    )


def default_policy(chain_id: int) -> ChainPolicy:
    """The policy for a chain where no settings give one."""
    return ChainPolicy(1 if chain_id in DEVELOPMENT_CHAINS else CONFIRMATIONS, MAX_FEE_GWEI * GWEI)


def policy_of(config: NodeConfig, chain_id: int) -> ChainPolicy:
    """The policy that the settings ask for."""
    usual = default_policy(chain_id)
    return ChainPolicy(config.confirmations or usual.confirmations, config.max_fee_gwei * GWEI)
