"""Serves an application with uvicorn inside our own loop: no signal handlers, no access log, guarded connections."""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
import ssl
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, cast

import structlog
import uvicorn
from starlette.types import ASGIApp

from dht.errors import NodeError
from roles.relay.connection_slots import ConnectionSlots
from roles.relay.connections import MAX_HEAD, ConnectionLimits, GuardedProtocol, Threads
from roles.shardcast.errors import BadCertificate
from roles.shardcast.pace import Line

log = structlog.get_logger("relay")

INTAKE_THREADS = OUTLET_THREADS = 16
START_SECONDS = 10.0
GRACE = 1


class PortTaken(NodeError):
    """The address cannot be listened on; the message says which and why."""


@dataclass(frozen=True, slots=True)
class Certificate:
    """PEM files: the certificate with its chain, and its key if that is in a separate file."""

    chain: Path
    key: Path | None = None

    def check(self) -> None:
        """Raises BadCertificate when the files cannot be used."""
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(self.chain, self.key, password=_no_password)
        except (OSError, ValueError) as error:  # SSLError is an OSError
            reason = getattr(error, "strerror", None) or str(error)
            raise BadCertificate(f"cannot serve with the certificate {self.chain}: {reason}") from error


def _no_password() -> str:
    raise ValueError("the key is encrypted; give one that is not, readable by the relay only")


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.has_started = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Set `has_started` once the server listens."""
        await super().startup(sockets)
        self.has_started.set()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals to the program."""
        yield


@asynccontextmanager
async def serve(
    app: ASGIApp,
    *,
    host: str,
    port: int,
    limits: ConnectionLimits | None = None,
    certificate: Certificate | None = None,
    line: Line | None = None,
    flag: str = "--port",
) -> AsyncIterator[str]:
    """Serve until the block is left, then stop within two seconds. Yields the base URL. Bodies
    keep to the pace of `line`.

    Port 0 picks a free one; `flag` is the option that chooses another. With a certificate, the server speaks TLS only.
    Raises PortTaken, BadCertificate.
    """
    if certificate is not None:
        certificate.check()
    listener = _listen(host, port, flag)
    _silence_uvicorn()
    threads = Threads(
        ThreadPoolExecutor(INTAKE_THREADS, thread_name_prefix="intake"),
        ThreadPoolExecutor(OUTLET_THREADS, thread_name_prefix="outlet"),
    )
    config = _configuration(app, limits or ConnectionLimits(), certificate, threads, line or Line())
    server = _Server(config)
    url = f"{'https' if certificate else 'http'}://{_shown(host)}:{listener.getsockname()[1]}"
    # No TaskGroup: it would turn an error of the caller's block into a group of errors. The task ends in `finally`.
    task = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        async with asyncio.timeout(START_SECONDS):
            await server.has_started.wait()
        yield url
    finally:
        server.should_exit = True
        await _stopped(server, task)
        listener.close()
        threads.intake.shutdown(wait=False, cancel_futures=True)
        threads.outlet.shutdown(wait=False, cancel_futures=True)


def _configuration(
    app: ASGIApp, limits: ConnectionLimits, certificate: Certificate | None, threads: Threads, line: Line
) -> uvicorn.Config:
    slots = ConnectionSlots(limits.total, limits.per_address)
    return uvicorn.Config(
        app,
        http=cast(type[asyncio.Protocol], partial(GuardedProtocol, limits, slots, threads, line)),
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        limit_concurrency=2 * limits.total,  # our own limit applies first: closing connections still count here
        h11_max_incomplete_event_size=MAX_HEAD,
        timeout_keep_alive=10,
        timeout_graceful_shutdown=GRACE,
        ssl_certfile=certificate.chain if certificate else None,
        ssl_keyfile=certificate.key if certificate else None,
    )


def _silence_uvicorn() -> None:
    """Its logger prints tracebacks of requests cut off at shutdown; the application logs what matters."""
    logger = logging.getLogger("uvicorn.error")
    if not logger.handlers:
        logger.addHandler(logging.NullHandler())
    logger.propagate = False


async def _stopped(server: uvicorn.Server, task: asyncio.Task[Any]) -> None:
    done, _ = await asyncio.wait([task], timeout=GRACE + 0.5)
    if not done:
        server.force_exit = True
        for connection in list(server.server_state.connections):
            connection.transport.abort()
        await asyncio.wait([task], timeout=0.4)
        task.cancel()
        await asyncio.wait([task])
    if not task.cancelled() and (error := task.exception()) is not None:
        log.warning("server.failed", error=f"{type(error).__name__}: {error}"[:300])


def _listen(host: str, port: int, flag: str) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(512)
        listener.setblocking(False)
    except OSError as error:
        listener.close()
        reason = "another program holds that port" if error.errno == errno.EADDRINUSE else error.strerror
        raise PortTaken(f"cannot listen on {host}:{port}: {reason}; choose another with {flag}") from error
    return listener


def _shown(host: str) -> str:
    return f"[{host}]" if ":" in host else host
