"""Runs a testnet from start to end: starts the processes, monitors them, waits for the final tally, stops in order.

The outcome is judged: exit status 0 only if the run ended, every node exited by itself or by order, and the
contributions on the ledger match what was accepted.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import sys
import time
from collections.abc import Mapping
from typing import Any

from dht.errors import NodeError
from dht.identity import NodeKey
from ledger.client import LedgerClient
from ledger.errors import LedgerError
from node.errors import ConfigError
from node.health import raise_file_limit
from node.lifetime import adopt_orphans
from node.running import StopSignal, stop_on_signals
from node.testnet.adversaries.kinds import KINDS
from node.testnet.fleet import Fleet
from node.testnet.live import Frame, LiveView, PlainView, View, save_picture, summary_lines
from node.testnet.outcome import Outcome
from node.testnet.page import TestnetPage
from node.testnet.picture import Picture
from node.testnet.plan import TestnetOptions, TestnetPlan, free_ports, make_plan
from node.testnet.processes import guests_in, processes_of
from node.testnet.reckoning import Reckoning
from node.testnet.setup import Prepared, join_command, prepare_run, start_chain
from roles.shardcast.client import RelayClient
from roles.shardcast.relay_http import make_http
from roles.shardcast.replies import RelayInfo

TURN_SECONDS = 0.25
TALLY_SECONDS = 180.0
"""How long verdicts and the final tally may take after the end of training."""
INTERRUPTED = 130
GUEST_SECONDS = 30.0
"""How long nodes started by hand in the testnet's folder may take to exit after the end."""


class Testnet:
    """One testnet. `run` returns the exit status."""

    __test__ = False

    def __init__(self, options: TestnetOptions, view: View) -> None:
        self._options, self._view = options, view
        self._plan: TestnetPlan = make_plan(options)
        self._picture = Picture(quorum=options.quorum)
        self._page = TestnetPage(self._plan, options)
        self._pictured = 0
        self._begun = float(os.environ.get("INTELLECT_NODE_TESTNET_STARTED") or time.time())
        self._outcome = Outcome()
        self.fleet = Fleet(self._plan, self._picture, self._outcome, told=self._take, say=view.say)

    # -- life ------------------------------------------------------------------------------------------------------

    async def run(self, stop: StopSignal) -> int:
        """Run everything until the end or a stop. Raises ConfigError when it cannot even begin."""
        self._view.say(f"testnet in {self._options.directory}")
        async with self._page.serve() as url:
            self._view.say(f"watch it at {url}")
            return await self._run(stop)

    async def _run(self, stop: StopSignal) -> int:
        options = self._options
        (port,) = free_ports(1)
        await self.fleet.forks.open()  # imports while the chain starts
        self.fleet.chain, rpc = await start_chain(self._plan, port)
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
                await self.fleet.start(stop.event)
                reckoning = Reckoning(ledger, client, self._picture, self._page)
                return await self._until_end(prepared, reckoning, stop)

    def _take(self, name: str, event: Mapping[str, Any]) -> None:
        self._picture.take(name, event)
        self._page.take(name, event)

    async def _until_end(self, prepared: Prepared, reckoning: Reckoning, stop: StopSignal) -> int:
        watching = asyncio.create_task(reckoning.watch())
        try:
            await self._watch(prepared, reckoning, stop)
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)
        if stop.event.is_set():
            self._say_so_far(prepared, reckoning)
            return INTERRUPTED if stop.was_interrupt else 1
        if self._picture.has_ended or not self._outcome.faults:
            await reckoning.judge(self._outcome)
        self._judge_adversaries()
        await self._see_guests_off(stop)
        await self.fleet.stop()
        frame = self._frame(prepared, reckoning)
        for line in summary_lines(frame, checks=self._final_lines(frame)):
            self._view.say(line)
        return 1 if self._outcome.faults else 0

    def _say_so_far(self, prepared: Prepared, reckoning: Reckoning) -> None:
        """Print the summary that stays on the terminal when the view is stopped before the end."""
        if self._picture.accepted:
            frame = self._frame(prepared, reckoning)
            for line in summary_lines(frame, checks=[f"stopped after {frame.seconds:.1f} s"]):
                self._view.say(line)

    async def _see_guests_off(self, stop: StopSignal) -> None:
        """Wait for nodes started by hand, which notice the end by themselves. Relays and chain
        stay up until they have exited."""
        until, has_said = time.monotonic() + GUEST_SECONDS, False
        while guests_in(self._options.directory) and time.monotonic() < until and not stop.event.is_set():
            if not has_said:
                self._view.say("waiting for the nodes that were started by hand to leave ..")
                has_said = True
            await asyncio.sleep(TURN_SECONDS)

    # -- watching --------------------------------------------------------------------------------------------------

    async def _watch(self, prepared: Prepared, reckoning: Reckoning, stop: StopSignal) -> None:
        """Watch until trainer and validators have exited by themselves, time is up, or a stop. Raises ConfigError."""
        ended_at: float | None = None
        while not stop.event.is_set():
            self.fleet.listen()
            frame = self._frame(prepared, reckoning)
            self._view.draw(frame)
            self._page.draw(frame)
            self._keep_picture(frame)
            self.fleet.check_chain()
            if self.fleet.has_ended():
                return
            if self.fleet.is_trainer_lost():
                self._outcome.faults.append("the trainer ended and was not started again: nothing more can be trained")
                return
            if self.fleet.is_training_over:
                ended_at = ended_at or time.monotonic()
                if time.monotonic() - ended_at > TALLY_SECONDS:
                    self._outcome.faults.append("the validators did not finish the tally in time")
                    return
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(TURN_SECONDS):
                    await stop.event.wait()

    def _keep_picture(self, frame: Frame) -> None:
        """Save the picture while every node is still running."""
        if self._options.picture and self._picture.trained > self._pictured and not self._picture.has_ended:
            self._pictured = self._picture.trained
            save_picture(frame, self._options.picture)

    def _frame(self, prepared: Prepared, reckoning: Reckoning) -> Frame:
        return Frame(
            picture=self._picture,
            steps=self._options.steps,
            seconds=time.time() - self._begun,
            run=prepared.spec.run_id,
            join_command=join_command(prepared, self._options.directory / "my-worker"),
            block=reckoning.block,
            contributions=reckoning.by_wallet(),
            states={node.name: self.fleet.state_of(node) for node in self._plan.nodes},
        )

    # -- the end ---------------------------------------------------------------------------------------------------

    def _judge_adversaries(self) -> None:
        """Report each adversary's outcome. If one that must always be refused was accepted, the testnet has failed."""
        for node in self._plan.adversaries:
            accepted, refused = self._picture.outcomes_of(node.key.node)
            reasons = ", ".join(f"{count} {reason}" for reason, count in refused.most_common()) or "none was judged"
            state = "; struck out" if self.fleet.is_struck_out(node) else ""
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
        (options.directory / "chain").mkdir(exist_ok=True)  # report an unwritable folder at once
    except OSError as error:
        raise ConfigError(
            f"cannot use the folder {options.directory}: {error.strerror}; name another by --dir"
        ) from error
    if not is_empty:
        raise ConfigError(f"{options.directory} is not empty: a testnet begins anew; name another folder by --dir")


def run_testnet(options: TestnetOptions, *, plain: bool, remove: bool) -> int:
    """Run a testnet. Returns the exit status. `remove` deletes its folder afterwards, unless something in it is
    worth a look. Raises ConfigError."""
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
        elif remove:  # nothing was ever started
            shutil.rmtree(options.directory, ignore_errors=True)
    return code


async def _run(options: TestnetOptions, view: View) -> int:
    testnet = Testnet(options, view)
    async with stop_on_signals() as stop:
        stop.hurry = testnet.fleet.kill
        try:
            with view:
                return await testnet.run(stop)
        except (NodeError, LedgerError):
            if stop.event.is_set():  # a stop interrupted the request
                return INTERRUPTED if stop.was_interrupt else 1
            raise
        finally:
            if stop.event.is_set():
                view.say("stopping workers, validators, trainer, relays and the chain (Ctrl-C again: at once) ..")
            await testnet.fleet.stop()
