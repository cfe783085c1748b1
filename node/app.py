"""Composes one node and runs it: identity, directory, ledger, observer, voice, relays, role; and ends it in order.

The order matters both ways. Opened: key, status page, DHT, spec, ledger, role. Closed: the role (a relay's server with
it), the record says OFFLINE, then ledger, HTTP client, DHT, status page.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from typing import Any

import structlog

from dht.directory import HivemindDirectory
from dht.envelope import Envelope
from dht.errors import NodeError
from dht.identity import NodeKey
from dht.peers import check_transport
from dht.records import Publisher, unix_ms
from ledger.errors import LedgerError
from node import __version__
from node.actors import (
    LIFETIMES,
    LIMITS,
    Actor,
    Parts,
    build_relay,
    build_trainer,
    build_validator,
    build_worker,
    certificate_of,
    check_relay,
)
from node.archive import Archive
from node.config import NodeConfig
from node.data_sets import find_data_sets
from node.defaults import OBSERVER_SECONDS, TALLY_LOOK_SECONDS
from node.disk import DiskWatch, is_disk_full, wait_for_room
from node.errors import ConfigError
from node.fitness import check_fitness, measure_machine
from node.hardware import free_disk
from node.health import LoopLag, Uptime, raise_file_limit
from node.join import JoinString
from node.joining import fetch_spec, find_join, join_ledger
from node.log import EventStream, quiet_libraries
from node.meeting import Meeting
from node.presence import Presence
from node.registration import Registrar, read_wallet
from node.relay_book import RelayBook
from node.secrets import read_operator_key
from node.status.client import write_status_file
from node.status.credits import Credits
from node.status.facts import facts_of_directory, facts_of_run, list_peers
from node.status.knowledge import Knowledge
from node.status.metrics import read_daemon_metrics
from node.status.server import status_server
from node.status.story import OF_ONE_NODE, Story
from node.twin import new_boot
from node.upgrading import Upgrading
from node.watchdog import Watchdog
from roles.announce import Voice
from roles.boards import UnionDirectory
from roles.compute import ComputeThread
from roles.messages import nodes_key
from roles.observer import Observer
from roles.requirements import describe_hardware
from roles.shardcast.client import RelayClient
from roles.shardcast.pace import line_of
from roles.shardcast.relay_http import make_http
from roles.tally import MAX_BLOB
from roles.trusted import TrustedState

log = structlog.get_logger()

Build = Callable[[Parts], Awaitable[Actor]]


class Node:
    """One participant, from its settings. `run` returns when the run has ended; cancel it to stop in order.

    `build` makes the actor out of the node's parts (not that of a relay); the default is the role's own.
    """

    def __init__(self, config: NodeConfig, events: EventStream, *, build: Build | None = None) -> None:
        self._config, self._events = config, events
        self._build = build or build_actor
        self._lag, self._uptime = LoopLag(), Uptime()
        self._line = line_of(config.upload_limit, config.download_limit)
        self._disk = DiskWatch(config.home, config.max_disk)
        self._boot = new_boot(unix_ms())
        self._phase = "starting"
        self._node, self._hardware = "", ""
        self._story = Story(limits=OF_ONE_NODE)
        events.listeners.append(lambda event: self._story.take(config.role, event))
        self._knowledge: Knowledge | None = None
        self._parts: Parts | None = None
        self._directory: HivemindDirectory | None = None
        self._upgrading: Upgrading | None = None

    async def run(self) -> None:
        """Join, take part, leave. Raises ConfigError, NodeError or LedgerError with a sentence for the user."""
        raise_file_limit()
        join = find_join(self._config)
        check_settings(self._config, join)
        key = load_or_make_key(self._config)
        self._node = key.node
        log.info("node.started", version=__version__, node=key.node, run=join.run, pid=os.getpid())
        async with AsyncExitStack() as stack:
            stack.callback(asyncio.create_task(Watchdog(self._config.home).run()).cancel)
            port = await stack.enter_async_context(self._open_status())
            write_status_file(self._config.home, port=port, host=self._config.status_host)
            parts = await self._join(stack, key, join)
            self._parts = parts
            quiet_libraries()
            await self._measure(parts)
            await self._take_part(parts)
        self._phase = "stopped"
        lag = round(self._lag.percentile(0.99), 3)
        log.info("node.stopped", seconds=round(self._uptime.seconds, 1), loop_lag_p99=lag, loop_lag_max=self._lag.worst)

    async def _join(self, stack: AsyncExitStack, key: NodeKey, join: JoinString) -> Parts:
        config = self._config
        operator = read_operator_key(config)
        self._phase = "connecting"
        directory = await stack.enter_async_context(self._open_directory(join))
        self._directory = directory
        http = await stack.enter_async_context(make_http(ca=config.relay_ca, line=self._line))
        book = RelayBook(run=join.run, directory=directory, http=http, hints=join.relays)
        self._phase = "looking for the run"
        finder = RelayClient(key, run=join.run, trainers=(), relays=book, http=http)
        spec = await fetch_spec(config, run=join.run, book=book, client=finder)
        await find_data_sets(
            spec, home=config.home, beside=config.spec, get=lambda digest, most: finder.get(digest, limit=most)
        )
        directory.anchor(item.node for item in (*spec.validators, *spec.trainers))
        self._phase = "connecting to the ledger"
        ledger = await join_ledger(config, spec, join.rpc, operator)
        stack.push_async_callback(ledger.close)
        trusted = TrustedState(spec, spec.run_id)
        book.is_member = trusted.is_member
        rows = UnionDirectory(
            directory,
            relays=book,
            http=http,
            run=spec.run_id,
            limits=LIMITS,
            lifetimes=LIFETIMES,
            membership=self._is_admitted,
            settled=self._is_settled,
        )
        book.read_from(rows)
        observer = Observer(
            spec=spec,
            trusted=trusted,
            directory=rows,
            ledger=ledger,
            interval=OBSERVER_SECONDS,
            watch_rollouts=config.role != "relay",
        )
        publisher = Publisher(key, rows, run=spec.run_id, state=config.home / "sequence.json")
        directory.on_rebuilt(publisher.publish_all_again)
        compute = ComputeThread()
        stack.callback(compute.close)
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
            relays=RelayClient(
                key, run=spec.run_id, trainers=[item.node for item in spec.trainers], relays=book, http=http
            ),
            http=http,
            compute=compute,
        )

    def _open_directory(self, join: JoinString) -> Any:
        config = self._config
        return HivemindDirectory.open(
            key_path=config.key_path,
            host_maddrs=[f"/ip{6 if ':' in config.host else 4}/{config.host}/tcp/{config.port}"],
            announce_maddrs=config.announce,
            initial_peers=[peer for peer in join.peers if not peer.endswith(f"/p2p/{self._node}")],
            run=join.run,
            limits=LIMITS,
            lifetimes=LIFETIMES,
            membership=self._is_admitted,
            settled=self._is_settled,
            client_mode=config.role == "worker",
            peer_cache=config.home / "peers.json",
            state_dir=config.home,
        )

    def _is_admitted(self, row: Envelope) -> bool:
        """Whether our storage takes this row: membership by kind, once the ledger was seen; before that everybody's."""
        trusted = self._parts.trusted if self._parts else None
        return trusted is None or trusted.may_be_stored(row)

    def _is_settled(self, row: Envelope) -> bool:
        """Whether a row keeps its place when a key is full: those of nodes whose ids cost something."""
        trusted = self._parts.trusted if self._parts else None
        return trusted is None or trusted.view is None or trusted.is_member(row.signer)

    async def _measure(self, parts: Parts) -> None:
        """What the machine has, for our record; a worker leaves here when that is less than the run asks. Raises Unfit."""
        is_worker = parts.config.role == "worker"
        if is_worker and parts.spec.requirements.download_mbit:
            await parts.book.refresh()
        spec = parts.spec if is_worker else None
        found = await measure_machine(spec, folder=parts.config.home, client=parts.relays, commits=parts.ledger.commits)
        self._hardware = describe_hardware(found)
        log.info("machine.measured", hardware=self._hardware)
        if is_worker:
            check_fitness(parts.spec.requirements, found)

    # -- taking part -----------------------------------------------------------------------------------------------

    async def _take_part(self, parts: Parts) -> None:
        presence = Presence(parts, hardware=self._hardware, lag=self._lag, boot=self._boot)
        async with asyncio.TaskGroup() as group:
            beside = [
                group.create_task(work)
                for work in (
                    self._lag.run(),
                    parts.compute.watch(),
                    self._disk.run(),
                    parts.rows.run(),
                    self._make_upgrading(parts).run(),
                    self._make_meeting(parts).run(),
                    parts.publisher.run(),
                    parts.observer.run(),
                    parts.book.run(),
                    parts.relays.run(),
                    self._register(parts),
                    self._watch_tallies(parts),
                )
            ]
            try:
                await self._act(parts, presence, group, beside)
            finally:
                self._phase = "stopping"
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
            gc.collect()  # the old role's model, before another is loaded
            await wait_for_room(parts.config.home)
        log.info("role.ended")

    async def _play(self, parts: Parts) -> bool:
        """The role, until it has ended; whether it has. False: the disk was full, and it goes on from there when made anew."""
        try:
            actor = await self._build(parts)
            quiet_libraries()  # torch and transformers came only now
            self._phase = "running"
            log.info("node.ready", seconds=round(self._uptime.seconds, 2))
            await actor.run()
        except Exception as error:
            if not is_disk_full(error):
                raise
            self._phase = "waiting for room on the disk"
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
            certificate=certificate_of(parts.config),
            line=self._line,
        ) as url:
            beside.append(group.create_task(presence.keep_up(http=parts.config.http_url or url)))
            self._phase = "running"
            log.info("node.ready", seconds=round(self._uptime.seconds, 2), url=url)
            if parts.config.archive:
                archive = Archive(parts.spec, ledger=parts.ledger, relays=parts.relays, store=relay.shelf.store)
                beside.append(group.create_task(archive.run()))
            await relay.run()

    def _make_upgrading(self, parts: Parts) -> Upgrading:
        passes_on, path = parts.config.role != "worker", parts.config.home / "upgrade.json"
        self._upgrading = Upgrading(parts.trusted, parts.rows, parts.voice, path=path, passes_on=passes_on)
        return self._upgrading

    def _make_meeting(self, parts: Parts) -> Meeting:
        run, is_member = parts.spec.run_id, parts.trusted.is_member
        return Meeting(parts.directory, parts.rows, run=run, node=parts.key.node, is_member=is_member)

    async def _register(self, parts: Parts) -> None:
        wallet = read_wallet(parts.config)
        await Registrar(spec=parts.spec, key=parts.key, wallet=wallet, ledger=parts.ledger, relays=parts.relays).run()

    # -- status ----------------------------------------------------------------------------------------------------

    def _open_status(self) -> AbstractAsyncContextManager[int]:
        config = self._config
        self._story.describe(kind="node", role=config.role, node=self._node, phase=self._phase)
        return status_server(
            config.status_port,
            self.status,
            story=self._story,
            refresh=self._refresh_story,
            more_metrics=self._daemon_metrics,
            host=config.status_host,
        )

    async def _watch_tallies(self, parts: Parts) -> None:
        """Tell the story of final tallies, only while somebody looks: their blobs are as large as the run is busy."""
        credits = Credits(self._story, parts.spec)
        while True:
            await asyncio.sleep(TALLY_LOOK_SECONDS)
            if self._knowledge is not None and self._knowledge.is_watched:
                with contextlib.suppress(NodeError, LedgerError, ConfigError):
                    await credits.tell_all(parts.ledger, lambda digest: parts.relays.get(digest, limit=MAX_BLOB))

    async def _daemon_metrics(self) -> str:
        if self._parts is None:
            return ""
        return await read_daemon_metrics(self._parts.directory.metrics_url, self._parts.http)

    def _refresh_story(self) -> None:
        """Tell the story what this node knows now: called only while somebody looks."""
        if self._knowledge is None and self._parts is not None:
            self._knowledge = Knowledge(self._story, self._parts.trusted, self._parts.book)
        if self._knowledge is not None:
            self._knowledge.refresh()
        self._story.describe(phase=self._phase)

    def status(self) -> Mapping[str, Any]:
        """What the status page shows: plain values, nothing secret."""
        parts, directory = self._parts, self._directory
        known: dict[str, Any] = {
            "node": self._node,
            "role": self._config.role,
            "phase": self._phase,
            "version": __version__,
            "hardware": self._hardware,
            "uptime_seconds": round(self._uptime.seconds, 1),
            "memory_peak_bytes": self._uptime.peak_bytes,
            "disk_used_bytes": self._disk.used,
            "disk_budget_bytes": self._config.max_disk,
            "loop_lag_p50_seconds": round(self._lag.percentile(0.5), 4),
            "loop_lag_p99_seconds": round(self._lag.percentile(0.99), 4),
            "loop_lag_max_seconds": round(self._lag.worst, 4),
            **facts_of_directory(directory),
        }
        if parts is not None:
            known |= facts_of_run(parts)
            key = nodes_key(parts.spec.run_id, self._config.role)
            known["published"] = parts.publisher.is_confirmed(key, parts.key.node)
            known["upgrade"] = self._upgrading.sentence if self._upgrading else ""
            known["unconfirmed_rows"] = parts.publisher.unconfirmed
        return known | {
            "known_peers": list_peers(directory.peers()) if directory else [],
            "events": dict(self._events.counts),
            "recent": list(self._events.recent),
        }


async def build_actor(parts: Parts) -> Actor:
    """The actor of the node's role; relays are served, not built here."""
    match parts.config.role:
        case "worker":
            return await build_worker(parts)
        case "validator":
            return await build_validator(parts)
        case _:
            return await build_trainer(parts)


def check_settings(config: NodeConfig, join: JoinString) -> None:
    """Say what is wrong with the settings before a key is made or anything opened. Raises ConfigError, LedgerError."""
    read_wallet(config)
    read_operator_key(config)
    if config.key is not None or config.key_path.exists():
        NodeKey.load(config.key_path)
    for address in config.announce:
        check_transport(address.partition("/p2p/")[0])
    if config.role == "relay":
        check_relay(config)
    elif not (join.peers or join.relays or config.spec or (config.home / "peers.json").exists()):
        raise ConfigError(
            "nobody to ask about the run: the join string names no peer and no relay; get a whole one "
            "(intellect://RUN?peer=..&rpc=..) from the run's operator, or add --peer"
        )


def load_or_make_key(config: NodeConfig) -> NodeKey:
    """The node's key; made at the first start in the data folder, never where a path was named. Raises IdentityError."""
    path = config.key_path
    if config.key is None and not path.exists():
        key = NodeKey.generate()
        key.save(path)
        log.info("key.made", file=str(path), node=key.node)
        return key
    return NodeKey.load(path)
