"""The version handshake: the owner makes a demand, nodes report it, and exit when the step comes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dht.identity import NodeKey
from dht.memory import MemoryDirectory, MemoryNetwork
from dht.records import Publisher
from ledger.wallet import address_of
from node.upgrading import Outdated, Upgrading
from roles.announce import Voice
from roles.messages import ROW_RULES, UpgradeRow, upgrades_key
from roles.trusted import TrustedState
from roles.upgrades import is_met, is_of_owner, sign_upgrade
from tests.builders import make_spec, make_view, node_key, operator_key

SPEC = make_spec()
OWNER = operator_key(100)


def demand(*, key: bytes = OWNER, **changes: Any) -> UpgradeRow:
    fields: dict[str, Any] = {"number": 1, "messages": 2, "software": "0.3.0", "step": 5, "by": 1_800_000_000}
    bare = UpgradeRow(run=SPEC.run_id, signature="0" * 130, **(fields | changes))
    return sign_upgrade(bare, SPEC, key)


def make_network() -> MemoryNetwork:
    limits = {kind: rule.max_bytes for kind, rule in ROW_RULES.items()}
    lifetimes = {kind: rule.lifetime for kind, rule in ROW_RULES.items()}
    return MemoryNetwork(run=SPEC.run_id, limits=limits, lifetimes=lifetimes)


class Node:
    """One node's part in the handshake."""

    def __init__(self, number: int, network: MemoryNetwork, folder: Path, **changes: Any) -> None:
        self.key: NodeKey = node_key(number)
        self.rows = MemoryDirectory(network)
        self.trusted = TrustedState(SPEC)
        voice = Voice(Publisher(self.key, self.rows, run=SPEC.run_id, state=None), node=self.key.node, spec=SPEC)
        self.voice = voice
        fields: dict[str, Any] = {
            "path": folder / f"{number}.json",
            "passes_on": True,
            "software": "0.2.0",
            "messages": 1,
        }
        self.upgrading = Upgrading(self.trusted, self.rows, voice, **(fields | changes))

    async def passers_on(self) -> set[str]:
        key = upgrades_key(SPEC.run_id)
        return {row.signer for row in (await self.rows.read([key]))[key]}


@pytest.fixture
def make_node(tmp_path: Path) -> Callable[..., Node]:
    network = make_network()

    def make(number: int, **changes: Any) -> Node:
        node = Node(number, network, tmp_path, **changes)
        view = make_view(SPEC)
        node.trusted.admit_view(replace(view, terms=replace(view.terms, owner=address_of(OWNER))))
        return node

    return make


def open_step(node: Node, step: int) -> None:
    node.trusted.head = type("Head", (), {"step": step})()


async def test_look__the_owners_demand_is_said_and_passed_on(make_node: Callable[..., Node]) -> None:
    first, second = make_node(31), make_node(32)
    await first.voice.announce(demand())
    await second.upgrading.look()
    assert (
        "needs intellect-node 0.3.0 (messages 2) or newer from step 5 on, about 2027-01-15" in second.upgrading.sentence
    )
    assert second.key.node in await second.passers_on()


async def test_look__a_worker_listens_only(make_node: Callable[..., Node]) -> None:
    first, worker = make_node(31), make_node(32, passes_on=False)
    await first.voice.announce(demand())
    await worker.upgrading.look()
    assert worker.upgrading.sentence
    assert await worker.passers_on() == {first.key.node}


async def test_look__nobody_but_the_owner_is_heard(make_node: Callable[..., Node]) -> None:
    first, second = make_node(31), make_node(32)
    await first.voice.announce(demand(key=operator_key(7)))
    await second.upgrading.look()
    assert second.upgrading.demand is None


async def test_look__changed_by_who_passes_it_on(make_node: Callable[..., Node]) -> None:
    first, second = make_node(31), make_node(32)
    await first.voice.announce(demand().model_copy(update={"step": 1}))
    await second.upgrading.look()
    assert second.upgrading.demand is None


async def test_look__a_flood_of_demands_is_judged_bit_by_bit(make_node: Callable[..., Node]) -> None:
    node = make_node(31)
    for number in range(100):
        stranger = make_node(100 + number)
        await stranger.voice.announce(demand(key=operator_key(7), number=1000 + number))
    await make_node(32).voice.announce(demand())
    judged = []
    while node.upgrading.demand is None:
        await node.upgrading.look()
        judged.append(len(node.upgrading._judged))
    assert judged == [32, 64, 96, 101][: len(judged)]


async def test_look__grace_until_the_step_then_leaves(make_node: Callable[..., Node]) -> None:
    node = make_node(31)
    await node.voice.announce(demand(step=5))
    open_step(node, 4)
    await node.upgrading.look()
    open_step(node, 5)
    with pytest.raises(Outdated, match="Install it and start again"):
        await node.upgrading.look()


async def test_look__new_enough_goes_on(make_node: Callable[..., Node]) -> None:
    node = make_node(31, software="0.3.1", messages=2)
    await node.voice.announce(demand(step=5))
    open_step(node, 9)
    await node.upgrading.look()
    assert node.upgrading.sentence == ""


async def test_look__the_highest_number_stands(make_node: Callable[..., Node]) -> None:
    first, second, third = make_node(31), make_node(32), make_node(33)
    await first.voice.announce(demand(number=2, software="0.1.0", messages=1))
    await second.voice.announce(demand(number=1))
    await third.upgrading.look()
    assert third.upgrading.demand == demand(number=2, software="0.1.0", messages=1)
    assert third.upgrading.is_met


async def test_look__kept_over_a_restart_with_nobody_to_ask(make_node: Callable[..., Node], tmp_path: Path) -> None:
    first, before = make_node(31), make_node(32)
    await first.voice.announce(demand())
    await before.upgrading.look()
    after = Node(32, make_network(), tmp_path)
    after.trusted.admit_view(before.trusted.view)  # type: ignore[arg-type]
    await after.upgrading.look()
    assert after.upgrading.demand == demand()


async def test_look__damaged_file_is_nothing(make_node: Callable[..., Node], tmp_path: Path) -> None:
    (tmp_path / "31.json").write_bytes(b"\xff{")
    node = make_node(31)
    await node.upgrading.look()
    assert node.upgrading.demand is None


@pytest.mark.parametrize(
    ("software", "messages", "is_enough"),
    [
        ("0.3.0", 2, True),
        ("0.10.0", 2, True),
        ("0.2.9", 9, False),
        ("0.3.0", 1, False),
        ("0.3.0.dev1", 2, True),
        ("x", 2, False),
    ],
)
def test_is_met(software: str, messages: int, is_enough: bool) -> None:
    assert is_met(demand(), software=software, messages=messages) == is_enough


def test_is_of_owner__of_another_run() -> None:
    other = make_spec(name="another run")
    assert is_of_owner(demand(), SPEC, address_of(OWNER))
    assert not is_of_owner(demand(), other, address_of(OWNER))
