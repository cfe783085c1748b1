"""The ledger: each end-point separately, the contract behind it, its clock, and the operator account's balance."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import AsyncExitStack

from dht.errors import NodeError
from ledger.client import LedgerClient
from ledger.errors import LedgerError, LedgerUnavailable
from ledger.records import Block
from ledger.wallet import address_of
from node.amounts import show_briefly
from node.config import NodeConfig
from node.doctor.finding import Finding, fault, ok, skipped, warning
from node.doctor.network import CLOCK_FIX
from node.ledger_access import open_ledger
from node.secrecy import shown_url
from node.secrets import OPERATOR_PASSWORD, read_secret
from roles.spec import RunSpec

PATIENCE = 4.0
"""Timeout in seconds for one end-point."""
EARLY_SECONDS = 5
"""How far in our future a block's time may be before our clock is considered wrong."""
STALE_SECONDS = 900
"""Age of the newest block after which a chain is considered stopped."""
COIN = 10**18
LOW_BALANCE = COIN // 1000


async def examine_ledger(config: NodeConfig, spec: RunSpec, urls: Sequence[str]) -> list[Finding]:
    """Check each end-point; then, at the first that works, clock and balance."""
    if not urls:
        return [fault("ledger", "no end-point is known", "add --rpc URL, or use a join string that has rpc=")]
    found: list[Finding] = []
    async with AsyncExitStack() as stack:
        answers = {url: await _try(stack, spec, url) for url in urls}
        clients = [client for client in answers.values() if isinstance(client, LedgerClient)]
        found += [judge_end_point(url, answer, spec=spec, is_vital=not clients) for url, answer in answers.items()]
        if not clients:
            return found
        try:
            found.append(judge_block(await clients[0].head(), now=time.time()))
            found.append(await _check_balance(config, spec, urls))
        except LedgerError as error:
            found.append(fault("ledger", str(error), "try again; if it stays, name another end-point: --rpc"))
    if len(urls) == 1:
        fix = "name a second one, of somebody else: --rpc"
        found.append(warning("ledger", "only one end-point: whatever it says is believed", fix))
    return found


async def _try(stack: AsyncExitStack, spec: RunSpec, url: str) -> LedgerClient | LedgerError:
    try:
        return await stack.enter_async_context(await open_ledger(spec, [url], patience=PATIENCE))
    except LedgerError as error:
        return error


def judge_end_point(url: str, answer: LedgerClient | LedgerError, *, spec: RunSpec, is_vital: bool) -> Finding:
    """Judge one end-point. A dead one is no fault while another works; one of another chain always is."""
    place = shown_url(url)
    match answer:
        case LedgerClient():
            said = f"{place}: chain {answer.domain.chain_id}, contract {spec.ledger.contract} has the run's code"
            return ok("ledger", said)
        case LedgerUnavailable():
            make = fault if is_vital else warning
            return make("ledger", f"{place}: {answer}", "is the URL right, and the way to it open? Else another: --rpc")
        case _:
            fix = "it is another chain or contract than the run's: take this end-point away"
            return fault("ledger", f"{place}: {answer}", fix)


def judge_block(block: Block, *, now: float) -> Finding:
    """Compare our clock with the chain's newest block."""
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
        key = read_secret(config.operator_key.expanduser(), config.operator_password_file, OPERATOR_PASSWORD)
    except (NodeError, LedgerError):
        return skipped("balance", "the operator key cannot be read")
    async with await open_ledger(spec, urls, operator_key=key, patience=PATIENCE) as ledger:
        return judge_balance(address_of(key), await ledger.balance())


def judge_balance(address: str, wei: int) -> Finding:
    """Whether the operator can pay for gas."""
    said = f"{address} holds {show_briefly(wei)}"
    if wei == 0:
        return fault("balance", said, f"send coins for gas to {address}")
    return warning("balance", said, f"send more for gas to {address}") if wei < LOW_BALANCE else ok("balance", said)
