"""A short visit to a run, for commands: no role, a temporary key, the DHT in client mode.

Writes nothing except transactions, if the settings name a key that pays for them.
"""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from dht.directory import HivemindDirectory
from dht.errors import TransportError
from dht.identity import NodeKey
from ledger.client import LedgerClient
from node.actors import LIFETIMES, LIMITS
from node.config import NodeConfig
from node.errors import ConfigError
from node.join import JoinString
from node.joining import fetch_spec, find_join, join_ledger
from node.log import quiet_libraries
from node.relay_book import RelayBook, open_relays
from node.running import patiently, said_when_slow
from node.secrets import read_operator_key
from roles.shardcast.client import RelayClient
from roles.spec import RunSpec

FINDING_SECONDS = 20.0


@dataclass(frozen=True, slots=True)
class Visit:
    """A run as a visitor sees it."""

    spec: RunSpec
    directory: HivemindDirectory
    ledger: LedgerClient
    relays: RelayClient


@asynccontextmanager
async def visit_run(config: NodeConfig) -> AsyncIterator[Visit]:
    """Find the run and its ledger. Raises ConfigError, NodeError or LedgerError with a sentence."""
    join = find_join(config)
    async with AsyncExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="intellect-visit-")))
        key = NodeKey.generate()
        key.save(home / "node.key")
        with said_when_slow("looking for the run: its peers, its relays, its ledger .."):
            directory = await stack.enter_async_context(open_as_visitor(home, join))
            quiet_libraries()
            http, book = await stack.enter_async_context(open_relays(directory, join, ca=config.relay_ca))
            await _meet(book)
            finder = RelayClient(key, run=join.run, trainers=(), relays=book, http=http)
            ours = config.model_copy(update={"data": home})
            spec = await fetch_spec(ours, run=join.run, book=book, client=finder)
            operator = read_operator_key(config)
            # With a paying key, the pending transaction is kept where the next command, or the node, finds it.
            ledger = await join_ledger(config if operator else ours, spec, join.rpc, operator, patience=FINDING_SECONDS)
        stack.push_async_callback(ledger.close)
        trainers = [item.node for item in spec.trainers]
        relays = RelayClient(key, run=join.run, trainers=trainers, relays=book, http=http)
        yield Visit(spec, directory, ledger, relays)


def open_as_visitor(home: Path, join: JoinString) -> AbstractAsyncContextManager[HivemindDirectory]:
    """The run's directory in client mode, with the key in `home`."""
    return HivemindDirectory.open(
        key_path=home / "node.key",
        host_maddrs=(),
        initial_peers=join.peers,
        run=join.run,
        limits=LIMITS,
        lifetimes=LIFETIMES,
        client_mode=True,
        state_dir=home,
    )


async def _meet(book: RelayBook) -> None:
    async def attempt() -> None:
        await book.refresh()
        if not book():
            raise TransportError("no relay of the run answered")

    try:
        await patiently(attempt, event="run.not_found_yet", hint="the run was not found", patience=FINDING_SECONDS)
    except ConfigError as error:
        raise ConfigError(f"{error}; is the run up, and the join string the newest one?") from error
