"""The nodes of a testnet with their keys, ports and folders. Writes their configuration files."""

from __future__ import annotations

import contextlib
import hashlib
import random
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from dht.identity import NodeKey
from ledger.accounts import devnet_accounts
from ledger.keystore import save_key
from ledger.records import Operator
from ledger.wallet import address_of
from node.errors import UsageError
from node.testnet.adversaries.kinds import check_kinds

Role = Literal["trainer", "worker", "validator", "relay"]
UNASSIGNED = (20_000, 32_768)
MAX_TRAINERS = 8
"""The contract's limit."""
MAX_NODES = 60
"""A devnet funds 256 accounts, and one machine cannot run more nodes anyway."""


@dataclass(frozen=True, slots=True)
class TestnetOptions:
    """What the user asked for."""

    directory: Path
    workers: int = 2
    validators: int = 3
    relays: int = 2
    trainers: int = 1
    steps: int = 30
    seed: int = 1
    model: Path | None = None
    draft: Path | None = None
    page_port: int = 0  # of the page; 0 picks a free one
    picture: Path | None = None  # SVG of the view after the last step
    adversaries: tuple[str, ...] = ()  # kinds of cheating workers, beside the honest ones

    __test__ = False  # tells pytest that this is not a test

    def check(self) -> None:
        """Raises UsageError for numbers that make no network."""
        if self.workers < 0:
            raise UsageError(f"--workers {self.workers}: 0 or more (with 0 the run waits until you add one by hand)")
        for name in ("validators", "relays", "steps"):
            if getattr(self, name) < 1:
                raise UsageError(f"--{name} {getattr(self, name)}: a testnet needs at least one")
        if not 1 <= self.trainers <= MAX_TRAINERS:
            raise UsageError(f"--trainers {self.trainers}: one that leads, and up to {MAX_TRAINERS - 1} that stand by")
        if not 0 <= self.page_port <= 65_535:
            raise UsageError(f"--page-port {self.page_port}: a port is a number from 1 to 65535, or 0 for a free one")
        check_kinds(self.adversaries)
        if len(set(self.adversaries)) != len(self.adversaries):
            raise UsageError("--adversary: name each kind once")
        if self.workers + len(self.adversaries) + self.validators + self.relays + self.trainers > MAX_NODES:
            raise UsageError(f"at most {MAX_NODES} nodes fit on one machine")
        if self.picture is not None and not self.picture.expanduser().absolute().parent.is_dir():
            raise UsageError(f"--picture {self.picture}: there is no such folder")

    @property
    def quorum(self) -> int:
        """More than half of the validators."""
        return self.validators // 2 + 1


@dataclass(frozen=True, slots=True)
class NodePlan:
    """One node: name, folder, keys, ports."""

    name: str
    role: Role
    home: Path
    key: NodeKey
    operator_key: bytes | None = None
    wallet_key: bytes | None = None
    port: int = 0
    http_port: int = 0
    adversary: str = ""  # kind of cheating worker

    @property
    def config_file(self) -> Path:
        """Path of its configuration."""
        return self.home / "node.toml"

    @property
    def events_file(self) -> Path:
        """Path of its event stream."""
        return self.home / "events.jsonl"

    @property
    def wallet(self) -> str | None:
        """Address that its contributions go to."""
        key = self.wallet_key or self.operator_key
        return address_of(key) if key else None

    @property
    def peer(self) -> str:
        """Multiaddr at which other nodes find it."""
        return f"/ip4/127.0.0.1/tcp/{self.port}/p2p/{self.key.node}"

    def as_operator(self) -> Operator:
        """Its entry in the run. Raises ValueError for a node without an operator key."""
        if self.operator_key is None:
            raise ValueError(f"{self.name} has no operator key")
        address = address_of(self.operator_key)
        return Operator(self.key.node, address, address)


@dataclass(frozen=True, slots=True)
class TestnetPlan:
    """Everything except the chain's contract and the run's id, which are known once the chain runs."""

    directory: Path
    chain_seed: str
    owner_key: bytes
    trainers: tuple[NodePlan, ...]  # the first leads, the others stand by
    relays: tuple[NodePlan, ...]
    validators: tuple[NodePlan, ...]
    workers: tuple[NodePlan, ...]
    quorum: int
    adversaries: tuple[NodePlan, ...] = ()

    __test__ = False

    @property
    def trainer(self) -> NodePlan:
        """The trainer that leads first."""
        return self.trainers[0]

    @property
    def nodes(self) -> tuple[NodePlan, ...]:
        """Every node, in the order of starting."""
        return (*self.relays, *self.trainers, *self.workers, *self.adversaries, *self.validators)


def make_plan(options: TestnetOptions) -> TestnetPlan:
    """Derive keys from the seed, and choose folders below the directory and free ports."""
    options.check()
    chain_seed = f"testnet-{options.seed}"
    accounts = iter(devnet_accounts(1 + options.trainers + options.validators + options.relays, chain_seed))
    owner = next(accounts)
    ports = iter(free_ports(options.trainers + 2 * options.relays + options.validators))
    home = options.directory

    def nodes(role: Role, count: int, *, is_operator: bool, has_wallet: bool = False) -> Iterator[NodePlan]:
        for number in range(1, count + 1):
            name = role if role == "trainer" and number == 1 else f"{role}-{number}"
            yield NodePlan(
                name=name,
                role=role,
                home=home / name,
                key=NodeKey(_secret(options.seed, f"node/{name}")),
                operator_key=next(accounts) if is_operator else None,
                wallet_key=_secret(options.seed, f"wallet/{name}") if has_wallet else None,
                port=0 if role == "worker" else next(ports),
                http_port=next(ports) if role == "relay" else 0,
            )

    trainers = tuple(nodes("trainer", options.trainers, is_operator=True))
    validators = tuple(nodes("validator", options.validators, is_operator=True))
    relays = tuple(nodes("relay", options.relays, is_operator=True, has_wallet=True))
    workers = tuple(nodes("worker", options.workers, is_operator=False, has_wallet=True))
    adversaries = tuple(_adversary(kind, options) for kind in options.adversaries)
    return TestnetPlan(
        home, chain_seed, owner, trainers, relays, validators, workers, options.quorum, adversaries=adversaries
    )


def _adversary(kind: str, options: TestnetOptions) -> NodePlan:
    """A cheating worker of this kind, with a key and wallet of its own."""
    name = f"adversary-{kind}"
    key, wallet = NodeKey(_secret(options.seed, f"node/{name}")), _secret(options.seed, f"wallet/{name}")
    return NodePlan(name, "worker", options.directory / name, key, wallet_key=wallet, adversary=kind)


def _secret(seed: int, name: str) -> bytes:
    """32 bytes for a throw-away key of a development network."""
    return hashlib.sha256(f"testnet-secret/1/{seed}/{name}".encode()).digest()


def free_ports(count: int) -> list[int]:
    """Loopback ports that are free now, all different.

    They are below the range that the system assigns itself (32768 and up on Linux), so that a node that asks for any
    free port, or dials out, does not get one that another is about to listen on.
    """
    found: dict[int, None] = {}
    for port in random.sample(range(*UNASSIGNED), len(range(*UNASSIGNED))):
        if len(found) == count:
            break
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            found[port] = None
    return list(found)


def write_node(node: NodePlan, *, join: str, spec: Path, model: Path) -> None:
    """Write keys and configuration of one node to where it looks for them. An existing folder keeps its keys."""
    node.home.mkdir(parents=True, exist_ok=True)
    settings: dict[str, Any] = {"role": node.role, "join": join, "data": str(node.home), "threads": 1}
    if not (node.home / "node.key").exists():
        node.key.save(node.home / "node.key")
    if node.role != "worker":  # workers fetch the spec from a relay, like anybody who joins
        settings |= {"spec": str(spec), "port": node.port}
    if node.role == "trainer":
        settings["model"] = str(model)
    if node.role == "relay":
        settings |= {"http_port": node.http_port, "sponsor": True}
    for name, key in (("operator", node.operator_key), ("wallet", node.wallet_key)):
        if key is not None:
            path = node.home / f"{name}.key"
            if not path.exists():
                save_key(path, key)
            settings["operator_key" if name == "operator" else "wallet"] = str(path)
    node.config_file.write_text("".join(f"{name} = {_toml(value)}\n" for name, value in settings.items()))


def _toml(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int):
        return str(value)
    text = str(value).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{text}"'
