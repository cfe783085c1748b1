"""A devnet over HTTP with a run on it, and the nodes that use it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from ledger.accounts import devnet_accounts
from ledger.client import LedgerClient
from ledger.deployment import Deployment, deploy
from ledger.devnet import running_devnet
from ledger.records import NewRun, Operator
from ledger.wallet import address_of
from tests.anvil import shared_anvil
from tests.contract.harness import NODES, RUN

ACCOUNTS = devnet_accounts(8, "unit-tests")


@dataclass(frozen=True, slots=True)
class LiveRun:
    """A run on a devnet: account 0 trains, accounts 1 to 3 validate."""

    url: str
    deployment: Deployment


Connect = Callable[..., Awaitable[LedgerClient]]


def operator(index: int) -> Operator:
    address = address_of(ACCOUNTS[index])
    return Operator(NODES[index], address, address)


def new_run(*, quorum: int) -> NewRun:
    """A run of one trainer and three validators."""
    return NewRun(
        run=RUN,
        validators=tuple(operator(index) for index in (1, 2, 3)),
        trainers=(operator(0),),
        quorum=quorum,
        epoch_checkpoints=2,
        epoch_max_seconds=600,
        round_seconds=10,
    )


@pytest.fixture(scope="session")
def anvil() -> str:
    """One anvil for all tests; each deploys its own contract."""
    return shared_anvil([address_of(key) for key in ACCOUNTS])


@pytest.fixture(params=["devnet", "anvil"])
async def live(request: pytest.FixtureRequest) -> AsyncIterator[LiveRun]:
    async with AsyncExitStack() as stack:
        if request.param == "anvil":
            url = request.getfixturevalue("anvil")
        else:
            url = await stack.enter_async_context(running_devnet(seed="unit-tests", block_seconds=3600))
        deployment = await deploy(url, ACCOUNTS[7])
        owner = await LedgerClient.connect([url], contract=deployment.contract, operator_key=ACCOUNTS[7])
        async with owner:
            await owner.create_run(**new_run(quorum=2))
        yield LiveRun(url, deployment)


@pytest.fixture
async def connect(live: LiveRun) -> AsyncIterator[Connect]:
    """Opens clients of the run by account index (None: a reader); they are closed at the end."""
    async with AsyncExitStack() as stack:

        async def open_client(account: int | None = None, *, state_dir: Path | None = None) -> LedgerClient:
            client = await LedgerClient.connect(
                [live.url],
                contract=live.deployment.contract,
                run=RUN,
                operator_key=None if account is None else ACCOUNTS[account],
                state_dir=state_dir,
                patience=1.0,
            )
            return await stack.enter_async_context(client)

        yield open_client
