"""p2pd as a child process: started without seeds and without hivemind's RSA check, monitored, and never left running.

Owns the names of the control sockets and the daemon's last output lines. Knows no rows.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import re
import socket
import tempfile
import warnings
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import structlog

from dht.bare import (
    P2P,
    Multiaddr,
    PeerID,
    p2pd_pb2,
    raise_if_failed,
    read_pbmsg_safe,
    use_hivemind_log_handler,
    write_pbmsg,
)
from dht.locks import PREFIX, StartError

Reachability = Literal["unknown", "public", "private"]
START_SECONDS = 20.0
REAP_SECONDS = 0.5
METRICS_SECONDS, MAX_METRICS = 2.0, 2**20
STOP_SECONDS = 5.0
_TEMPORARY = tempfile.gettempdir() if len(tempfile.gettempdir()) < 48 else "/tmp"  # noqa: S108 - a socket's path is short
_SOCKET = re.compile(rf"^{PREFIX}(\d+)-.*\.sock$")

log = structlog.get_logger()


class _OpenCalls(dict[Any, "asyncio.Future[Any]"]):
    """Calls waiting for a response; a cancelled call counts as absent. Otherwise hivemind's reader would fail on
    setting its result and stop, and the node would receive nothing more although its daemon is alive."""

    def __contains__(self, call: object) -> bool:
        future = self.get(call)
        return future is not None and not future.done()


class _RunningTasks(dict[Any, "asyncio.Task[Any]"]):
    """Peers' calls in progress. hivemind does not remove those that the peer cancelled."""

    def __setitem__(self, call: Any, task: asyncio.Task[Any]) -> None:
        super().__setitem__(call, task)
        task.add_done_callback(lambda _: self.pop(call, None))

    def pop(self, call: Any, default: Any = None) -> Any:
        """Remove a task; a missing one is no error."""
        return super().pop(call, default)


class Daemon(P2P):  # type: ignore[misc]  # hivemind is untyped
    """hivemind's P2P, with control sockets under our own prefix and the daemon's last output lines kept."""

    _UNIX_SOCKET_PREFIX = f"/unix{_TEMPORARY}/{PREFIX}{os.getpid()}-"

    def __init__(self) -> None:
        super().__init__()
        self.last_lines: deque[str] = deque(maxlen=20)
        self.metrics_port = _free_port()

    def _log_p2pd_message(self, line: str) -> None:  # static in hivemind, but called on the instance
        self.last_lines.append(line[:500])
        P2P._log_p2pd_message(line)

    def _make_process_args(self, *arguments: str, **options: Any) -> list[str]:  # static in hivemind, too
        options["metricsAddr"] = f"127.0.0.1:{self.metrics_port}"  # if the port is taken, p2pd runs without metrics
        arguments_made: list[str] = P2P._make_process_args(*arguments, **options)
        return arguments_made

    async def connect(self, peer: PeerID, addresses: Sequence[Multiaddr]) -> None:
        """Dial a peer."""
        ways = [address.to_bytes() for address in addresses]
        connect = p2pd_pb2.ConnectRequest(peer=peer.to_bytes(), addrs=ways)
        await self._ask(p2pd_pb2.Request(type=p2pd_pb2.Request.CONNECT, connect=connect))

    async def connected_peers(self) -> list[PeerID]:
        """Peers with an open connection."""
        response = await self._ask(p2pd_pb2.Request(type=p2pd_pb2.Request.LIST_PEERS))
        return [PeerID(peer.id) for peer in response.peers]

    async def own_addresses(self) -> list[Multiaddr]:
        """Multiaddrs at which the daemon believes it can be reached."""
        response = await self._ask(p2pd_pb2.Request(type=p2pd_pb2.Request.IDENTIFY))
        return [Multiaddr(address) for address in response.identify.addrs]

    async def read_reachability(self) -> Reachability:
        """AutoNAT's verdict: whether peers could dial us, over new connections, at the addresses we announce.

        p2pd exposes it only in its metrics. Raises OSError, TimeoutError.
        """
        async with asyncio.timeout(METRICS_SECONDS):
            reader, writer = await asyncio.open_connection("127.0.0.1", self.metrics_port)
            try:
                writer.write(b"GET /metrics HTTP/1.0\r\nHost: 127.0.0.1\r\n\r\n")
                text = bytearray()
                while len(text) < MAX_METRICS and (block := await reader.read(2**16)):
                    text += block
            finally:
                writer.close()
        return parse_reachability(text.decode("utf-8", "replace"))

    async def _ask(self, request: Any) -> Any:
        """Send one request to the daemon. hivemind's own methods leave the connection open when cancelled."""
        reader, writer = await self._client.control.daemon_connector.open_connection()
        try:
            await write_pbmsg(writer, request)
            response = p2pd_pb2.Response()
            await read_pbmsg_safe(reader, response)
        finally:
            writer.close()
        raise_if_failed(response)
        return response

    def harden(self) -> None:
        """Work around two bugs of hivemind's control client (see the classes above). Call
        this before the first remote call."""
        control = self._client.control
        control._pending_calls = _OpenCalls()
        control._handler_tasks = _RunningTasks()

    async def wait_dead(self) -> None:
        """Return once the daemon has ended, or our connection to it has (after which every call would time out)."""
        control = self._client.control
        child = asyncio.ensure_future(self._child.wait())
        try:
            await asyncio.wait({child, control._read_task, control._write_task}, return_when=asyncio.FIRST_COMPLETED)
            await asyncio.wait({child}, timeout=REAP_SECONDS)  # let it close its sockets first
        finally:
            child.cancel()
            for task in (control._read_task, control._write_task):
                task.add_done_callback(_heed)

    @property
    def exit_code(self) -> int | None:
        """None while the daemon runs."""
        code: int | None = self._child.returncode
        return code

    @property
    def pid(self) -> int:
        """The daemon's process id."""
        return int(self._child.pid)

    def kill(self) -> None:
        """Kill a daemon that does not respond."""
        with contextlib.suppress(ProcessLookupError):
            self._child.kill()

    async def stop(self) -> None:
        """Stop the daemon with SIGTERM, then SIGKILL if needed. Never hangs."""
        try:
            async with asyncio.timeout(STOP_SECONDS):
                await self.shutdown()
        except TimeoutError:
            log.warning("p2pd.killed", pid=self.pid)
            self.kill()
            await self._child.wait()
        self._child._transport.close()  # otherwise the pipe to its output stays open until garbage collection
        for address in (self._daemon_listen_maddr, self._client_listen_maddr):
            with contextlib.suppress(OSError):
                os.unlink(address["unix"])


def _heed(task: asyncio.Task[Any]) -> None:
    """Retrieve the outcome of a hivemind task. Nobody else does, and asyncio would print its traceback."""
    if not task.cancelled():
        task.exception()


def parse_reachability(metrics: str) -> Reachability:
    """The reachability verdict in p2pd's metrics; `unknown` while AutoNAT is unsure."""
    found = {name: value for name, _, value in (line.partition(" ") for line in metrics.splitlines())}
    verdicts: dict[str, Reachability] = {"1": "public", "2": "private"}
    return verdicts.get(found.get("libp2p_autonat_reachability_status", "").strip(), "unknown")


def _free_port() -> int:
    """A loopback port that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


async def start_daemon(
    *, key_path: Path, host_maddrs: Sequence[str], announce_maddrs: Sequence[str], client_mode: bool
) -> Daemon:
    """Start p2pd with our key and without seeds, so that dead seeds cannot stop it (pitfalls
    BOOT-02, BOOT-03). Raises StartError."""
    _quieten()
    options = _options(key_path, host_maddrs, announce_maddrs, client_mode=client_mode)
    made: list[Daemon] = []

    class Remembered(Daemon):
        """Keeps a reference to the daemon: hivemind returns none when the start fails."""

        def __init__(self) -> None:
            super().__init__()
            made.append(self)

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            daemon: Daemon = await Remembered.create(**options)
    except BaseException as error:
        for failed in made:
            await _bury(failed)
        if not isinstance(error, Exception):
            raise
        # whatever went wrong with the daemon, the user gets a readable message
        raise StartError(f"p2pd did not start: {error}") from error
    daemon.harden()
    return daemon


async def _bury(daemon: Daemon) -> None:
    """Clean up after a daemon that failed to start: hivemind leaves its process, or the pipe to it."""
    child = getattr(daemon, "_child", None)
    if child is None:
        return
    with contextlib.suppress(ProcessLookupError):
        child.kill()
    await child.wait()
    child._transport.close()


def _options(
    key_path: Path, host_maddrs: Sequence[str], announce_maddrs: Sequence[str], *, client_mode: bool
) -> dict[str, Any]:
    is_local = all("/127.0.0.1/" in address or "/::1/" in address for address in host_maddrs)
    options: dict[str, Any] = {
        "identity_path": str(key_path.resolve()),
        "check_if_identity_free": False,  # it cannot read an ed25519 key (pitfall BOOT-15)
        "startup_timeout": START_SECONDS,
        "nat_port_map": not (is_local or client_mode),
        "auto_nat": not is_local,
    }
    if client_mode:
        return options | {"no_listen": True, "host_maddrs": None, "dht_mode": "client"}
    return options | {"host_maddrs": list(host_maddrs), "announce_maddrs": list(announce_maddrs) or None}


def _quieten() -> None:
    """Silence hivemind's logger, whose tracebacks would reach users. HIVEMIND_LOGLEVEL turns it back on."""
    use_hivemind_log_handler("nowhere")
    os.environ.setdefault("GOLOG_LOG_LEVEL", "error")
    if "HIVEMIND_LOGLEVEL" not in os.environ:
        logging.getLogger("hivemind").setLevel(logging.CRITICAL)


def remove_stale_sockets() -> None:
    """Delete control sockets whose process, by the id in their name, is gone. Never touches another program's files."""
    for path in Path(_TEMPORARY).glob(f"{PREFIX}*.sock"):
        match = _SOCKET.match(path.name)
        if match and not _is_alive(int(match[1])):
            with contextlib.suppress(OSError):
                path.unlink()


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True
