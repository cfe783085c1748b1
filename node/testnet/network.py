"""Runs a testnet from start to end: starts the processes, watches them, waits for the final tally, stops in order.

The end is judged: exit 0 only when the run ended, every node left by itself or by order, and the contributions on the
ledger are what was accepted.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import sys
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from dht.errors import NodeError, TransportError
from dht.identity import NodeKey
from ledger.client import LedgerClient
from ledger.errors import LedgerError
from node.contributions import Contributions, read_final, tokens_by_wallet, worker_units
from node.errors import ConfigError
from node.health import raise_file_limit
from node.lifetime import adopt_orphans
from node.running import StopSignal, stop_on_signals
from node.testnet.adversaries.kinds import KINDS
from node.testnet.events import EventTail
from node.testnet.live import Frame, LiveView, PlainView, View, save_picture, summary_lines
from node.testnet.page import TestnetPage
from node.testnet.picture import Picture
from node.testnet.plan import NodePlan, TestnetOptions, TestnetPlan, free_ports, make_plan
from node.testnet.processes import Child, guests_in, processes_of, remove_traces, stop_all
from node.testnet.setup import Prepared, join_command, node_child, prepare_run, restart_command, start_chain
from roles.shardcast.client import RelayClient
from roles.shardcast.relay_http import make_http
from roles.shardcast.replies import RelayInfo
from roles.tally import MAX_BLOB

TURN_SECONDS = 0.25
LEDGER_SECONDS = 1.5
"""Between two readings of the ledger for the display."""
TALLY_SECONDS = 180.0
"""After the end of training: what verdicts and the final tally may take."""
GONE_SECONDS = 5.0
INTERRUPTED = 130
RELAY_SECONDS = 15.0
RESTART_SECONDS = 600.0
"""How long a lost trainer may be missing before the testnet gives up."""
EJECTED_WORDS = "have struck this node"
"""In the last words of a worker whose strike a quorum of validators signed."""
GUEST_SECONDS = 30.0
"""After the end: what nodes started by hand in the testnet's folder may take to leave."""


@dataclass(slots=True)
class Outcome:
    """What the exit code follows from."""

    faults: list[str]
    notes: list[str]


class Testnet:
    """One testnet. `run` gives the exit code."""

    __test__ = False

    def __init__(self, options: TestnetOptions, view: View) -> None:
        self._options, self._view = options, view
        self._plan: TestnetPlan = make_plan(options)
        self._picture = Picture(quorum=options.quorum)
        self._page = TestnetPage(self._plan, options)
        self._tails = {node.name: EventTail(node.events_file) for node in self._plan.nodes}
        self._children: dict[str, Child] = {}
        self._chain: Child | None = None
        self._crashed: dict[str, tuple[float, int]] = {}  # node -> when it was seen, and how often it had started
        self._listening: set[str] = set()
        self._block = self._pictured = 0
        self._contributions: Contributions | None = None
        self._begun = float(os.environ.get("INTELLECT_NODE_TESTNET_STARTED") or time.time())
        self._trainers = [node.name for node in self._plan.trainers]
        self._outcome = Outcome([], [])

    # -- life ------------------------------------------------------------------------------------------------------

    async def run(self, stop: StopSignal) -> int:
        """Everything, until the end or a stop. Raises ConfigError when it cannot even begin."""
        self._view.say(f"testnet in {self._options.directory}")
        async with self._page.serve() as url:
            self._view.say(f"watch it at {url}")
            return await self._run(stop)

    async def _run(self, stop: StopSignal) -> int:
        options = self._options
        (port,) = free_ports(1)
        self._chain, rpc = await start_chain(self._plan, port)
        prepared = await prepare_run(self._plan, options, rpc)
        self._page.tell_run(prepared.spec)
        self._view.say(
            f"add a worker from another terminal:\n  {join_command(prepared, options.directory / 'my-worker')}"
        )
        async with await LedgerClient.connect(
            [rpc], contract=prepared.spec.ledger.contract, run=prepared.spec.run_id
        ) as ledger:
            async with make_http() as http:
                relays = [RelayInfo(r.key.node, f"http://127.0.0.1:{r.http_port}") for r in self._plan.relays]
                client = RelayClient(
                    NodeKey.generate(), run=prepared.spec.run_id, trainers=(), relays=lambda: relays, http=http
                )
                await self._start_nodes(stop)
                return await self._until_end(prepared, ledger, client, stop)

    async def _start_nodes(self, stop: StopSignal) -> None:
        """Relays first, until their DHT listens: whoever dials too early waits out a back-off."""
        await self._start(self._plan.relays, stop)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(RELAY_SECONDS):
                while not stop.event.is_set() and not all(self._is_listening(r) for r in self._plan.relays):  # noqa: ASYNC110 - nobody tells us
                    await asyncio.sleep(0.05)
        await self._start((node for node in self._plan.nodes if node.role != "relay"), stop)

    async def _start(self, nodes: Iterable[NodePlan], stop: StopSignal) -> None:
        for node in nodes:
            if stop.event.is_set():
                return
            child = node_child(node)
            self._children[node.name] = child
            await child.start()

    def _is_listening(self, relay: NodePlan) -> bool:
        for event in self._tails[relay.name].read():
            self._take(relay.name, event)
            self._listening |= {relay.name} if event["event"] == "directory.state_changed" else set()
        return relay.name in self._listening or not self._children[relay.name].is_running

    def _take(self, name: str, event: Mapping[str, Any]) -> None:
        self._picture.take(name, event)
        self._page.take(name, event)

    async def _until_end(self, prepared: Prepared, ledger: LedgerClient, client: RelayClient, stop: StopSignal) -> int:
        watching = asyncio.create_task(self._watch_ledger(ledger, client))
        try:
            await self._watch(prepared, stop)
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)
        if stop.event.is_set():
            return INTERRUPTED if stop.was_interrupt else 1
        await self._judge(ledger, client)
        self._judge_adversaries()
        await self._see_guests_off(stop)
        await self.stop()
        frame = self._frame(prepared)
        for line in summary_lines(frame, checks=self._final_lines(frame)):
            self._view.say(line)
        return 1 if self._outcome.faults else 0

    async def _see_guests_off(self, stop: StopSignal) -> None:
        """Nodes started by hand hear of the end by themselves: relays and chain stay until they have left."""
        until, has_said = time.monotonic() + GUEST_SECONDS, False
        while guests_in(self._options.directory) and time.monotonic() < until and not stop.event.is_set():
            if not has_said:
                self._view.say("waiting for the nodes that were started by hand to leave ..")
                has_said = True
            await asyncio.sleep(TURN_SECONDS)

    async def stop(self) -> None:
        """Workers, validators, trainer, relays, then the chain; whatever happens, nothing stays."""
        for role in ("worker", "validator", "trainer", "relay"):
            names = [node.name for node in self._plan.nodes if node.role == role]
            await stop_all(self._children[name] for name in names if name in self._children)
        if self._chain is not None:
            await self._chain.stop()
        await self._end_leftovers()
        remove_traces([child.pid for child in self._children.values() if child.code is not None])

    def kill(self) -> None:
        """End every process at once; `stop` then has nothing to wait for."""
        for child in (*self._children.values(), *([self._chain] if self._chain else [])):
            if child.is_running:
                child.kill()

    async def _end_leftovers(self) -> None:
        """Give children of children a moment, then say and end what is still there."""
        until = time.monotonic() + GONE_SECONDS
        while left := processes_of(os.getpid()):
            _reap()
            if time.monotonic() > until:
                for pid, command in left:
                    self._outcome.faults.append(f"process {pid} was left over: {command}")
                    with contextlib.suppress(ProcessLookupError, PermissionError):
                        os.kill(pid, signal.SIGKILL)
                return
            await asyncio.sleep(0.1)

    # -- watching --------------------------------------------------------------------------------------------------

    async def _watch(self, prepared: Prepared, stop: StopSignal) -> None:
        """Until trainer and validators have left by themselves, or too much time passed, or a stop."""
        ended_at: float | None = None
        while not stop.event.is_set():
            for name, tail in self._tails.items():
                for event in tail.read():
                    self._take(name, event)
            self._report_crashes()
            frame = self._frame(prepared)
            self._view.draw(frame)
            self._page.draw(frame)
            self._keep_picture(frame)
            if self._chain is not None and not self._chain.is_running:
                raise ConfigError("the chain ended: " + " ".join(self._chain.last_lines()))
            if self._has_ended():
                return
            if self._is_trainer_lost():
                self._outcome.faults.append("the trainer ended and was not started again: nothing more can be trained")
                return
            if self._picture.has_ended or any(self._children[name].code == 0 for name in self._trainers):
                ended_at = ended_at or time.monotonic()
                if time.monotonic() - ended_at > TALLY_SECONDS:
                    self._outcome.faults.append("the validators did not finish the tally in time")
                    return
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(TURN_SECONDS):
                    await stop.event.wait()

    def _keep_picture(self, frame: Frame) -> None:
        """While every node still stands; an empty one is of no use to anybody."""
        if self._options.picture and self._picture.trained > self._pictured and not self._picture.has_ended:
            self._pictured = self._picture.trained
            save_picture(frame, self._options.picture)

    def _is_trainer_lost(self) -> bool:
        """Whether all are gone and the time to start one again by hand is over."""
        return not self._picture.has_ended and all(map(self._is_lost, self._trainers))

    def _is_lost(self, name: str) -> bool:
        child = self._children[name]
        if not child.has_crashed or self._has_restarted(name):
            return False
        if not child.was_killed and not self._picture.nodes[name].is_ready:
            return True  # it never came up: the same would happen again
        return time.monotonic() - self._crashed[name][0] > RESTART_SECONDS

    def _has_restarted(self, name: str) -> bool:
        return name in self._crashed and self._picture.nodes[name].starts > self._crashed[name][1]

    def _has_ended(self) -> bool:
        if all(self._children[name].has_crashed for name in self._trainers) and not self._picture.has_ended:
            return False
        watched = [node.name for node in self._plan.nodes if node.role != "relay"]
        return all(self._children[name].code is not None for name in watched)

    def _report_crashes(self) -> None:
        for node in self._plan.nodes:
            child = self._children.get(node.name)
            if child is None or not child.has_crashed or node.name in self._crashed:
                continue
            self._crashed[node.name] = (time.monotonic(), self._picture.nodes[node.name].starts)
            if self._is_struck_out(node):
                self._view.say(f"{node.name} was struck out of the run and has left")
                continue
            if child.was_killed:  # by hand, or by a machine out of memory: the network should not mind
                self._outcome.notes.append(f"{node.name} {child.end_in_words} on the way")
            else:
                self._outcome.faults.append(f"{node.name} {child.end_in_words}")
            self._view.say(self._about_crash(node, child))

    def _is_struck_out(self, node: NodePlan) -> bool:
        """Whether an adversary ended as it should."""
        said = " ".join(self._children[node.name].last_lines())
        return bool(node.adversary) and (node.key.node in self._picture.ejected or EJECTED_WORDS in said)

    def _about_crash(self, node: NodePlan, child: Child) -> str:
        tail = "".join(f"\n    {line}" for line in child.last_lines())
        last = f"; its output is {child.output}" if child.was_killed else f"; its last lines ({child.output}):{tail}"
        wait = ""
        if node.role == "trainer" and len(self._trainers) == 1:
            wait = f" within {RESTART_SECONDS:.0f} s: the run waits for it"
        elif node.role == "trainer":
            wait = " (another trainer takes over once the lease has run out)"
        return (
            f"{node.name} {child.end_in_words}{last}\n"
            f"start it again from another terminal{wait}:\n  {restart_command(node)}"
        )

    async def _watch_ledger(self, ledger: LedgerClient, client: RelayClient) -> None:
        while True:
            with contextlib.suppress(NodeError, LedgerError):
                await self._read_ledger(ledger, client)
            await asyncio.sleep(LEDGER_SECONDS)

    async def _read_ledger(self, ledger: LedgerClient, client: RelayClient) -> None:
        self._block = (await ledger.head()).number
        roots = await ledger.final_roots()

        async def get(digest: str) -> bytes:
            return await client.get(digest, limit=MAX_BLOB)

        before = self._contributions
        final = dict(before.final) if before else {}
        root = before.root if before else None
        if roots and (root is None or root.epoch != roots[-1].epoch):
            root, body = await read_final(ledger, get)
            final = worker_units(body) if body else {}
        registrations = await ledger.registrations()
        credited: dict[str, int] = {}
        for (node, _), units in final.items():
            credited[node] = credited.get(node, 0) + units
        pending = {
            (node, registrations[node].wallet if node in registrations else None): count - credited.get(node, 0)
            for node, count in self._picture.tokens.items()
        }
        claims = {node: item.claimed for node, item in registrations.items() if item.claimed}
        self._contributions = Contributions(root, final, pending, claims)
        await self._page.credit(roots, get)

    def _frame(self, prepared: Prepared) -> Frame:
        return Frame(
            picture=self._picture,
            steps=self._options.steps,
            seconds=time.time() - self._begun,
            run=prepared.spec.run_id,
            join_command=join_command(prepared, self._options.directory / "my-worker"),
            block=self._block,
            contributions=self._contributions.by_wallet() if self._contributions else {},
            states={node.name: self._state_of(node) for node in self._plan.nodes},
        )

    def _state_of(self, node: NodePlan) -> str:
        child = self._children.get(node.name)
        if child is None or (child.code is None and not child.is_running):
            return "not started"
        if node.key.node in self._picture.ejected:
            return "struck out"
        if self._has_restarted(node.name):
            return "restarted" if self._picture.nodes[node.name].is_ready else "restarting"
        if child.was_killed:
            return "killed"
        if child.has_crashed:
            return f"crashed ({child.code})"
        if child.code is not None:
            return "left"
        return "ready" if self._picture.nodes[node.name].is_ready else "starting"

    # -- the end ---------------------------------------------------------------------------------------------------

    async def _judge(self, ledger: LedgerClient, client: RelayClient) -> None:
        """Compare the ledger with what was seen to be accepted."""
        if self._outcome.faults and not self._picture.has_ended:
            return
        try:
            await self._read_ledger(ledger, client)
            registrations = await ledger.registrations()
        except (TransportError, LedgerError, ConfigError) as error:
            self._outcome.faults.append(f"the tally could not be read: {error}")
            return
        found = self._contributions
        final = {wallet: units for wallet, (units, _) in (found.by_wallet() if found else {}).items()}
        seen = tokens_by_wallet(self._picture.tokens, registrations)
        total = sum(found.final.values()) if found else 0
        if sum(final.values()) != total or (sum(seen.values()) != total):
            self._outcome.faults.append(
                f"the ledger's tally says {total} tokens, wallets hold {sum(final.values())}, accepted were {sum(seen.values())}"
            )
        else:
            self._outcome.notes.insert(0, f"they equal the ledger's tally ({total} tokens) and the verdicts seen")

    def _judge_adversaries(self) -> None:
        """Say what each came to; one that must always be refused and was not is a fault."""
        for node in self._plan.adversaries:
            accepted, refused = self._picture.outcomes_of(node.key.node)
            reasons = ", ".join(f"{count} {reason}" for reason, count in refused.most_common()) or "none was judged"
            state = "; struck out" if self._is_struck_out(node) else ""
            self._outcome.notes.append(f"{node.name}: accepted {accepted}, refused {reasons}{state}")
            if accepted and KINDS[node.adversary].is_certain:
                self._outcome.faults.append(f"{node.name} had {accepted} submissions accepted")

    def _final_lines(self, frame: Frame) -> list[str]:
        picture = self._picture
        lines = list(self._outcome.notes)
        if picture.first_accepted is not None:
            installed = os.environ.get("INTELLECT_NODE_TESTNET_INSTALL_SECONDS", "0")
            waited = picture.first_accepted - self._begun
            lines.append(f"first accepted rollout {waited:.1f} s after the start (installation: {installed} s of it)")
        lines.append(f"left-over processes: {len(processes_of(os.getpid()))}")
        lines += [f"NOT RIGHT: {fault}" for fault in self._outcome.faults]
        return [*lines, f"{frame.seconds:.1f} s in all"]


def _prepare_folder(options: TestnetOptions) -> None:
    try:
        options.directory.mkdir(parents=True, exist_ok=True)
        is_empty = not any(options.directory.iterdir())
        (options.directory / "chain").mkdir(exist_ok=True)  # so that a folder nobody may write to is told at once
    except OSError as error:
        raise ConfigError(
            f"cannot use the folder {options.directory}: {error.strerror}; name another by --dir"
        ) from error
    if not is_empty:
        raise ConfigError(
            f"{options.directory} is not empty: a testnet begins anew; name another folder or remove that one"
        )


def _reap() -> None:
    """Collect adopted orphans that ended; asyncio collects our own children."""
    with contextlib.suppress(ChildProcessError):
        while True:
            pid, _ = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return


def run_testnet(options: TestnetOptions, *, plain: bool, remove: bool) -> int:
    """Run a testnet; the exit code. `remove` its folder afterwards, unless something there needs a look. Raises ConfigError."""
    adopt_orphans()
    raise_file_limit()
    _prepare_folder(options)
    view: View = PlainView() if plain or not sys.stdout.isatty() else LiveView()
    code = 1
    try:
        code = asyncio.run(_run(options, view))
    finally:
        if remove and code in (0, INTERRUPTED) and not guests_in(options.directory):
            shutil.rmtree(options.directory, ignore_errors=True)
        elif options.directory.is_dir() and any(options.directory.glob("*/*")):
            sys.stdout.write(f"everything is kept in {options.directory}\n")
        elif remove:  # nothing ever ran
            shutil.rmtree(options.directory, ignore_errors=True)
    return code


async def _run(options: TestnetOptions, view: View) -> int:
    testnet = Testnet(options, view)
    async with stop_on_signals() as stop:
        stop.hurry = testnet.kill
        try:
            with view:
                return await testnet.run(stop)
        except (NodeError, LedgerError):
            if stop.event.is_set():  # what was being asked was stopped under it
                return INTERRUPTED if stop.was_interrupt else 1
            raise
        finally:
            if stop.event.is_set():
                view.say("stopping workers, validators, trainer, relays and the chain (Ctrl-C again: at once) ..")
            await testnet.stop()
