"""The ledger: each end-point by itself, the contract behind it, its clock, and what the operator's account holds."""

from __future__ import annotations

import time
from collections.abc import Sequence

from dht.errors import NodeError
from ledger.client import LedgerClient
from ledger.errors import LedgerError, LedgerMismatch, LedgerUnavailable
from ledger.records import Block
from ledger.wallet import address_of, load_key
from node.config import NodeConfig
from node.doctor.finding import Finding, fault, ok, skipped, warning
from node.doctor.network import CLOCK_FIX
from node.ledger_access import open_ledger
from node.secrecy import shown_url
from roles.spec import RunSpec

PATIENCE = 4.0
"""Seconds for one end-point."""
EARLY_SECONDS = 5
"""A block may lie so far in our future before our clock is at fault."""
STALE_SECONDS = 900
"""Age of the newest block after which a chain is taken for stopped."""
COIN = 10**18
LOW_BALANCE = COIN // 1000


async def examine_ledger(config: NodeConfig, spec: RunSpec, urls: Sequence[str]) -> list[Finding]:
    """Each end-point; then, at the first that works, clock and balance."""
    if not urls:
        return [fault("ledger", "no end-point is known", "add --rpc URL, or use a join string that has rpc=")]
    found: list[Finding] = []
    answer: LedgerClient | None = None
    try:
        for url in urls:
            finding, client = await _try(spec, url)
            found.append(finding)
            if client is not None and answer is None:
                answer = client
            elif client is not None:
                await client.close()
        if answer is not None:
            found.append(judge_block(await answer.head(), now=time.time()))
            found.append(await _check_balance(config, spec, urls))
    except LedgerError as error:
        found.append(fault("ledger", str(error), "try again; if it stays, name another end-point: --rpc"))
    finally:
        if answer is not None:
            await answer.close()
    if len(urls) == 1 and answer is not None:
        found.append(
            warning(
                "ledger", "one end-point only: what it says is believed", "name a second one, of somebody else: --rpc"
            )
        )
    return found


async def _try(spec: RunSpec, url: str) -> tuple[Finding, LedgerClient | None]:
    try:
        client = await open_ledger(spec, [url], patience=PATIENCE)
    except LedgerMismatch as error:
        fix = "it is another chain or contract than the run's: take this end-point away"
        return fault("ledger", f"{shown_url(url)}: {error}", fix), None
    except LedgerUnavailable as error:
        return fault(
            "ledger", f"{shown_url(url)}: {error}", "is the URL right, and the way to it open? Else another: --rpc"
        ), None
    said = f"{shown_url(url)}: chain {client.domain.chain_id}, contract {spec.ledger.contract} has the run's code"
    return ok("ledger", said), client


def judge_block(block: Block, *, now: float) -> Finding:
    """Our clock against the chain's newest block."""
    age = now - block.timestamp
    if age < -EARLY_SECONDS:
        return fault("chain clock", f"block {block.number} lies {-age:.0f} s in our future", CLOCK_FIX)
    if age > STALE_SECONDS:
        fix = f"{CLOCK_FIX}; if the clock is right, the chain or this end-point has stopped: name another --rpc"
        return warning("chain clock", f"the newest block is {age / 60:.0f} minutes old", fix)
    return ok("chain clock", f"block {block.number} is {max(0.0, age):.0f} s old")


async def _check_balance(config: NodeConfig, spec: RunSpec, urls: Sequence[str]) -> Finding:
    if config.operator_key is None:
        return skipped("balance", "no operator key is named, so nothing is paid from here")
    try:
        key = load_key(config.operator_key.expanduser())
    except (NodeError, LedgerError):
        return skipped("balance", "the operator key cannot be read")
    async with await open_ledger(spec, urls, operator_key=key, patience=PATIENCE) as ledger:
        return judge_balance(address_of(key), await ledger.balance())


def judge_balance(address: str, wei: int) -> Finding:
    """Whether the operator can pay for gas."""
    said = f"{address} holds {wei / COIN:.6g} coins"
    if wei == 0:
        return fault("balance", said, f"send coins for gas to {address}")
    return warning("balance", said, f"send more for gas to {address}") if wei < LOW_BALANCE else ok("balance", said)
