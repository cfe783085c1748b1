"""The testnet's page: the events of all nodes as one story, with the states and wallets that only the testnet knows."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from ledger.records import FinalRoot
from node import __version__
from node.contributions import Get
from node.status.client import write_status_file
from node.status.credits import Credits
from node.status.server import status_server
from node.status.story import Story
from node.testnet.events import EventTail
from node.testnet.live import Frame
from node.testnet.plan import TestnetOptions, TestnetPlan
from roles.spec import RunSpec

Event = Mapping[str, Any]
MAX_GUESTS = 32


class TestnetPage:
    """One page for a whole testnet."""

    __test__ = False

    def __init__(self, plan: TestnetPlan, options: TestnetOptions) -> None:
        self.story = Story()
        self._directory, self._port = options.directory, options.page_port
        self._credits: Credits | None = None
        self._wallets: dict[str, list[str]] = {}
        self._planned = {node.name for node in plan.nodes}
        self._guests: dict[str, EventTail] = {}
        self.story.describe(
            kind="testnet", role="testnet", version=__version__, quorum=plan.quorum, steps=options.steps
        )
        for node in plan.nodes:
            self.story.set_node(node.name, role=node.role, id=node.key.node, state="not started")
            if node.role == "worker" and node.wallet:
                self._wallets.setdefault(node.wallet.lower(), []).append(node.name)

    @asynccontextmanager
    async def serve(self) -> AsyncIterator[str]:
        """Serve it; yields its URL. `intellect-node status --data FOLDER` finds it too. Raises ConfigError."""
        async with status_server(self._port, self.status, story=self.story) as port:
            write_status_file(self._directory, port=port)
            yield f"http://127.0.0.1:{port}/"

    def tell_run(self, spec: RunSpec) -> None:
        """Add that the run exists."""
        self.story.describe(run=spec.run_id, title=spec.name)
        self._credits = Credits(self.story, spec)

    def status(self) -> Mapping[str, Any]:
        """The testnet as a status; it has no numbers of its own."""
        facts = self.story.tables.get("facts", "all")
        return {"role": "testnet", "version": __version__, "run": facts.get("run", ""), "step": facts.get("step", 0)}

    def take(self, name: str, event: Event) -> None:
        """Add one event of a node."""
        self.story.take(name, event)

    def take_guests(self) -> None:
        """Add the events of nodes started by hand in the testnet's folder."""
        for path in self._directory.glob("*/events.jsonl"):
            name = path.parent.name
            if name not in self._planned and (name in self._guests or len(self._guests) < MAX_GUESTS):
                for event in self._guests.setdefault(name, EventTail(path)).read():
                    self.story.take(name, event)

    def draw(self, frame: Frame) -> None:
        """Add what only the testnet knows."""
        self.take_guests()
        self.story.describe(block=frame.block, join_command=frame.join_command, step=max(frame.picture.step, 0))
        for name, state in frame.states.items():
            self.story.set_node(name, state=state)
        rows = {
            wallet: {"final": final, "pending": max(0, pending), "nodes": self._wallets.get(wallet.lower(), [])}
            for wallet, (final, pending) in frame.contributions.items()
        }
        self.story.set_wallets(rows)

    async def credit(self, roots: Sequence[FinalRoot], get: Get) -> None:
        """Mark the submissions that new final tallies credit. Raises NodeError."""
        if self._credits is not None:
            await self._credits.tell_places(roots, get)
