"""Composes one node from its parts, runs it, and shuts it down in order.

The order matters both ways. Opened: key, status page, DHT, spec, ledger, role. Closed: the role (including a relay's
server), then the node record goes OFFLINE, then ledger, HTTP client, DHT, status page.
"""

from __future__ import annotations

import asyncio
import gc
import os
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack

import structlog

from dht.directory import HivemindDirectory
from dht.identity import NodeKey
from dht.records import Publisher, unix_ms
from ledger.client import LedgerClient
from node import __version__
from node.actors import (
    LIMITS,
    Actor,
    Parts,
    build_relay,
    build_trainer,
    build_validator,
    build_worker,
    certificate_of,
    keeping_by,
)
from node.archive import Archive
from node.config import NodeConfig
from node.data_sets import find_data_sets, from_relays
from node.defaults import OBSERVER_SECONDS
from node.disk import is_disk_full, wait_for_room
from node.fitness import check_fitness, measure_machine
from node.hardware import free_disk
from node.health import raise_file_limit
from node.join import JoinString
from node.joining import fetch_spec, find_join, join_ledger
from node.log import EventStream, quiet_libraries
from node.meeting import Meeting
from node.presence import Presence
from node.registration import Registrar, read_wallet
from node.relay_book import RelayBook, open_relays
from node.secrets import read_operator_key
from node.starting import check_place, check_settings, load_or_make_key
from node.status.client import write_status_file
from node.status.of_node import NodeStatus
from node.twin import new_boot
from node.upgrading import Upgrading
from node.watchdog import Watchdog
from roles.announce import Voice
from roles.boards import UnionDirectory
from roles.compute import ComputeThread
from roles.observer import Observer
from roles.requirements import describe_hardware
from roles.shardcast.client import RelayClient
from roles.shardcast.pace import line_of
from roles.shardcast.relay_http import RelayHttp
from roles.spec import RunSpec
from roles.trusted import TrustedState

log = structlog.get_logger()

Build = Callable[[Parts], Awaitable[Actor]]


class Node:
    """One participant, built from its settings. `run` returns when the run has ended; cancel it to stop in order.

    `build` makes the actor from the node's parts (except a relay's); the default is the role's own.
    `status` holds what its page shows.
    """

    def __init__(self, config: NodeConfig, events: EventStream, *, build: Build | None = None) -> None:
        self._config = config
        self._build = build or build_actor
        self._line = line_of(config.upload_limit, config.download_limit)
        self._boot = new_boot(unix_ms())
        self._keeping = keeping_by(self._trusted)
        self.status = NodeStatus(config, events)

    async def run(self) -> None:
        """Join the run, take part, leave. Raises ConfigError, NodeError or LedgerError with a sentence for the user."""
        raise_file_limit()
        join = find_join(self._config)
        check_settings(self._config, join)
        key = load_or_make_key(self._config)
        self.status.node = key.node
        log.info("node.started", version=__version__, node=key.node, run=join.run, pid=os.getpid())
        async with AsyncExitStack() as stack:
            stack.callback(asyncio.create_task(Watchdog(self._config.home).run()).cancel)
            port = await stack.enter_async_context(self.status.serve())
            self.status.phase = "connecting"
            directory = await stack.enter_async_context(self._open_directory(join))
            # Only now is the folder known to be ours. Before, this would overwrite the address of
            # another node running in it.
            write_status_file(self._config.home, port=port, host=self._config.status_host)
            parts = await self._join(stack, key, join, directory)
            self.status.parts = parts
            quiet_libraries()
            await self._measure(parts)
            await self._take_part(parts)
        self.status.phase = "stopped"
        lag, seconds = self.status.lag, round(self.status.uptime.seconds, 1)
        log.info("node.stopped", seconds=seconds, loop_lag_p99=round(lag.percentile(0.99), 3), loop_lag_max=lag.worst)

    async def _join(self, stack: AsyncExitStack, key: NodeKey, join: JoinString, directory: HivemindDirectory) -> Parts:
        """Open what a node needs before it has a role: the run's relays, its spec and its ledger."""
        config = self._config
        self.status.directory = directory
        http, book = await stack.enter_async_context(open_relays(directory, join, ca=config.relay_ca, line=self._line))
        self.status.phase = "looking for the run"
        spec = await self._find_run(key, join, http, book)
        directory.anchor(item.node for item in (*spec.validators, *spec.trainers))
        self.status.phase = "connecting to the ledger"
        ledger = await join_ledger(config, spec, join.rpc, read_operator_key(config))
        stack.push_async_callback(ledger.close)
        await check_place(config, spec, key.node, ledger)
        compute = ComputeThread()
        stack.callback(compute.close)
        return self._make_parts(
            spec=spec, key=key, directory=directory, ledger=ledger, book=book, http=http, compute=compute
        )

    async def _find_run(self, key: NodeKey, join: JoinString, http: RelayHttp, book: RelayBook) -> RunSpec:
        """Fetch the run's spec. Afterwards the data sets of its tasks are in the data folder too."""
        config, finder = self._config, RelayClient(key, run=join.run, trainers=(), relays=book, http=http)
        spec = await fetch_spec(config, run=join.run, book=book, client=finder)
        await find_data_sets(spec, home=config.home, beside=config.spec, get=from_relays(finder, book))
        return spec

    def _make_parts(
        self,
        *,
        spec: RunSpec,
        key: NodeKey,
        directory: HivemindDirectory,
        ledger: LedgerClient,
        book: RelayBook,
        http: RelayHttp,
        compute: ComputeThread,
    ) -> Parts:
        """Combine what was opened into the node's parts: rows over DHT and boards, the trusted
        state, and the node's own voice."""
        config, trainers = self._config, [item.node for item in spec.trainers]
        trusted = TrustedState(spec)
        book.is_member = trusted.is_member
        rows = UnionDirectory(directory, relays=book, http=http, run=spec.run_id, limits=LIMITS, **self._keeping)
        book.read_from(rows)
        observer = Observer(
            trusted=trusted,
            directory=rows,
            ledger=ledger,
            interval=OBSERVER_SECONDS,
            watch_rollouts=config.role != "relay",
        )
        publisher = Publisher(key, rows, run=spec.run_id, state=config.home / "sequence.json")
        directory.on_rebuilt(publisher.publish_all_again)
        return Parts(
            config=config,
            spec=spec,
            key=key,
            directory=directory,
            rows=rows,
            ledger=ledger,
            trusted=trusted,
            observer=observer,
            publisher=publisher,
            voice=Voice(publisher, node=key.node, spec=spec),
            book=book,
            relays=RelayClient(key, run=spec.run_id, trainers=trainers, relays=book, http=http),
            http=http,
            compute=compute,
        )

    def _open_directory(self, join: JoinString) -> AbstractAsyncContextManager[HivemindDirectory]:
        config = self._config
        return HivemindDirectory.open(
            key_path=config.key_path,
            host_maddrs=[f"/ip{6 if ':' in config.host else 4}/{config.host}/tcp/{config.port}"],
            announce_maddrs=config.announce,
            initial_peers=[peer for peer in join.peers if not peer.endswith(f"/p2p/{self.status.node}")],
            run=join.run,
            limits=LIMITS,
            client_mode=config.role == "worker",
            peer_cache=config.home / "peers.json",
            state_dir=config.home,
            **self._keeping,
        )

    def _trusted(self) -> TrustedState | None:
        """The trusted state; None until the run was joined."""
        return self.status.parts.trusted if self.status.parts else None

    async def _measure(self, parts: Parts) -> None:
        """Measure the machine for the node record. Raises Unfit if a worker's machine is less than the run requires."""
        is_worker = parts.config.role == "worker"
        if is_worker and parts.spec.requirements.download_mbit:
            await parts.book.refresh()
        spec = parts.spec if is_worker else None
        found = await measure_machine(spec, folder=parts.config.home, client=parts.relays, commits=parts.ledger.commits)
        self.status.hardware = describe_hardware(found)
        log.info("machine.measured", hardware=self.status.hardware)
        if is_worker:
            check_fitness(parts.spec.requirements, found)

    # -- taking part -----------------------------------------------------------------------------------------------

    async def _take_part(self, parts: Parts) -> None:
        presence = Presence(parts, hardware=self.status.hardware, lag=self.status.lag, boot=self._boot)
        async with asyncio.TaskGroup() as group:
            beside = [
                group.create_task(work)
                for work in (
                    self.status.lag.run(),
                    parts.compute.watch(),
                    self.status.disk.run(),
                    parts.rows.run(),
                    self._make_upgrading(parts).run(),
                    self._make_meeting(parts).run(),
                    parts.publisher.run(),
                    parts.observer.run(),
                    parts.book.run(),
                    parts.relays.run(),
                    self._register(parts),
                    self.status.watch_tallies(parts),
                )
            ]
            try:
                await self._act(parts, presence, group, beside)
            finally:
                self.status.phase = "stopping"
                await presence.say_offline()
                for task in beside:
                    task.cancel()

    async def _act(
        self, parts: Parts, presence: Presence, group: asyncio.TaskGroup, beside: list[asyncio.Task[None]]
    ) -> None:
        if parts.config.role == "relay":
            await self._serve_relay(parts, presence, group, beside)
            return
        beside.append(group.create_task(presence.keep_up(http="")))
        while not await self._play(parts):
            gc.collect()  # free the old role's model before another is loaded
            await wait_for_room(parts.config.home)
        log.info("role.ended")

    async def _play(self, parts: Parts) -> bool:
        """Run the role once. True when it has ended; False when the disk was full, after
        which a rebuilt role can resume."""
        try:
            actor = await self._build(parts)
            quiet_libraries()  # torch and transformers have only now been imported
            self.status.phase = "running"
            log.info("node.ready", seconds=round(self.status.uptime.seconds, 2))
            await actor.run()
        except Exception as error:
            if not is_disk_full(error):
                raise
            self.status.phase = "waiting for room on the disk"
            log.error("disk.full", free=free_disk(parts.config.home), role=parts.config.role)
            return False
        return True

    async def _serve_relay(
        self, parts: Parts, presence: Presence, group: asyncio.TaskGroup, beside: list[asyncio.Task[None]]
    ) -> None:
        from roles.relay import serve

        relay = build_relay(parts)
        await relay.prepare()
        async with serve(
            relay.app,
            host=parts.config.host,
            port=parts.config.http_port,
            flag="--http-port",
            certificate=certificate_of(parts.config),
            line=self._line,
        ) as url:
            beside.append(group.create_task(presence.keep_up(http=parts.config.http_url or url)))
            self.status.phase = "running"
            log.info("node.ready", seconds=round(self.status.uptime.seconds, 2), url=url)
            if parts.config.archive:
                archive = Archive(parts.spec, ledger=parts.ledger, relays=parts.relays, store=relay.shelf.store)
                beside.append(group.create_task(archive.run()))
            await relay.run()

    def _make_upgrading(self, parts: Parts) -> Upgrading:
        passes_on, path = parts.config.role != "worker", parts.config.home / "upgrade.json"
        upgrading = Upgrading(parts.trusted, parts.rows, parts.voice, path=path, passes_on=passes_on)
        self.status.upgrading = upgrading
        return upgrading

    def _make_meeting(self, parts: Parts) -> Meeting:
        run, is_member = parts.spec.run_id, parts.trusted.is_member
        return Meeting(parts.directory, parts.rows, run=run, node=parts.key.node, is_member=is_member)

    async def _register(self, parts: Parts) -> None:
        registrar = Registrar(
            spec=parts.spec,
            role=parts.config.role,
            key=parts.key,
            wallet=read_wallet(parts.config),
            ledger=parts.ledger,
            relays=parts.relays,
        )
        await registrar.run()


async def build_actor(parts: Parts) -> Actor:
    """The actor of the node's role. Relays are served, not built here."""
    match parts.config.role:
        case "worker":
            return await build_worker(parts)
        case "validator":
            return await build_validator(parts)
        case _:
            return await build_trainer(parts)
