"""A development chain served on loopback: `python -m ledger.devnet --port 8545`.

Never use it for real money: its keys are derived from a seed.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import ipaddress
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path

import uvicorn

from ledger.accounts import ACCOUNTS, devnet_accounts
from ledger.chain_journal import Genesis
from ledger.devnet_rpc import DevnetRpc
from ledger.errors import LedgerError
from ledger.evm import CHAIN_ID, DevChain
from ledger.wallet import address_of, checked_address


@contextlib.asynccontextmanager
async def running_devnet(
    host: str = "127.0.0.1",
    port: int = 0,
    *,
    seed: str,
    journal: Path | None = None,
    block_seconds: float = 1.0,
    fund: Sequence[str] = (),
) -> AsyncIterator[str]:
    """Run a devnet and yield its URL; it is shut down in order on leaving. Port 0 picks a free one. With `journal` the
    chain survives a restart. Addresses in `fund` hold coins from the start.

    Raises LedgerError when the port is taken or the host is not loopback.
    """
    listener = _listen(host, port)
    failure: Exception | None = None
    try:
        chain = DevChain(_genesis(seed, fund), clock=time.time, journal=journal)
        server = _Server(DevnetRpc(chain))
        async with asyncio.TaskGroup() as tasks:
            serving = tasks.create_task(server.serve(sockets=[listener]))
            mining = tasks.create_task(_mine_on_time(chain, block_seconds))
            await server.answering.wait()
            try:
                yield f"http://{host}:{listener.getsockname()[1]}"
            except Exception as error:
                failure = error  # raised by the caller's block: re-raised below, outside the group that would wrap it
            finally:
                mining.cancel()
                server.should_exit = True
                await asyncio.shield(serving)
        chain.close()
    finally:
        listener.close()
    if failure is not None:
        raise failure


class _Server(uvicorn.Server):
    """uvicorn without its own signal handlers; `answering` is set once it listens."""

    def __init__(self, app: DevnetRpc) -> None:
        config = uvicorn.Config(
            app,
            lifespan="off",
            ws="none",
            log_config=None,
            access_log=False,
            timeout_graceful_shutdown=1,
        )
        super().__init__(config)
        self.answering = asyncio.Event()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Install no handlers; signals belong to the owner of the event loop."""
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, then set `answering`."""
        await super().startup(sockets)
        self.answering.set()


def main(arguments: list[str] | None = None) -> int:
    """Command line: serve until SIGTERM or SIGINT. Exit status 0, or 1 with a message."""
    parser = argparse.ArgumentParser(prog="python -m ledger.devnet", description="A development chain on loopback.")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8545)
    parser.add_argument("--seed", default="devnet", help="accounts are derived from it")
    parser.add_argument(
        "--fund", action="append", default=[], metavar="ADDRESS", help="address that holds coins too; may be repeated"
    )
    parser.add_argument("--journal", type=Path, help="file that keeps the chain over restarts")
    parser.add_argument("--block-seconds", type=float, default=1.0, help="time between empty blocks")
    options = parser.parse_args(arguments)
    try:
        asyncio.run(_serve_until_signal(options))
    except LedgerError as error:
        sys.stderr.write(f"devnet: {error}\n")
        return 1
    except OSError as error:
        sys.stderr.write(f"devnet: cannot use {error.filename or 'the disk'}: {error.strerror}\n")
        return 1
    return 0


async def _serve_until_signal(options: argparse.Namespace) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with running_devnet(
        options.host,
        options.port,
        seed=options.seed,
        journal=options.journal,
        block_seconds=options.block_seconds,
        fund=options.fund,
    ) as url:
        sys.stdout.write(f"devnet ready {url} chain {CHAIN_ID}\n")
        sys.stdout.flush()
        await stop.wait()


async def _mine_on_time(chain: DevChain, seconds: float) -> None:
    while True:
        await asyncio.sleep(seconds)
        if time.time() >= chain.head_timestamp + 1:
            with contextlib.suppress(OSError):  # disk full: senders get the error; mining resumes once there is space
                chain.mine()


def _genesis(seed: str, fund: Sequence[str]) -> Genesis:
    seeded = (address_of(key) for key in devnet_accounts(ACCOUNTS, seed))
    return Genesis(int(time.time()), tuple(dict.fromkeys([*seeded, *map(checked_address, fund)])))


def _listen(host: str, port: int) -> socket.socket:
    try:
        if not ipaddress.ip_address(host).is_loopback:
            raise LedgerError(f"a devnet serves loopback only, not {host}: anyone could spend its coins")
    except ValueError as error:
        raise LedgerError(f"{host} is not an IP address") from error
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # Name the protocol: asyncio sets TCP_NODELAY only then, and without it each response takes 40 ms.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise LedgerError(f"cannot listen on {host}:{port}: {error.strerror}") from error
    return listener


if __name__ == "__main__":
    sys.exit(main())
