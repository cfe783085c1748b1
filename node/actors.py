"""Builds each role's actor from a node's parts. Heavy imports stay inside functions, so
that a relay never loads torch."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import httpx

from dht.directory import HivemindDirectory
from dht.encoding import encode
from dht.envelope import Envelope
from dht.identity import NodeKey
from dht.records import Publisher, unix_ms
from dht.rows import Keeping
from ledger.client import LedgerClient
from ledger.records import RegistrationRequest, RotationRequest
from node.base_model import checked_base
from node.config import NodeConfig
from node.data_sets import held_files, load_run_tasks
from node.disk import share_of_blobs
from node.engines import engine_of, set_threads
from node.errors import ConfigError
from node.join import is_web_address
from node.learners import build_learner
from node.relay_book import RelayBook
from roles.announce import Voice
from roles.boards import UnionDirectory
from roles.compute import ComputeThread
from roles.context import RunContext
from roles.messages import DHT_KINDS, ROW_RULES, subject_of
from roles.observer import Observer
from roles.shardcast.client import RelayClient
from roles.spec import RunSpec
from roles.trusted import TrustedState

if TYPE_CHECKING:
    from roles.relay import Certificate

LIMITS = {kind: ROW_RULES[kind].max_bytes for kind in DHT_KINDS}
LIFETIMES = {kind: ROW_RULES[kind].lifetime for kind in DHT_KINDS}
EVERY_INTERFACE = ("0.0.0.0", "::")  # noqa: S104 - compared with, never bound to


def keeping_by(trusted: Callable[[], TrustedState | None]) -> Keeping:
    """Storage rules for the row stores. Rows of members are kept, by kind; when a key is full, rows of nodes whose
    ids cost something keep their place. Until the ledger has been read (`trusted` returns None, or knows nothing
    yet), everybody's rows are kept."""

    def is_admitted(row: Envelope) -> bool:
        known = trusted()
        return known is None or known.may_be_stored(row)

    def is_settled(row: Envelope) -> bool:
        known = trusted()
        return known is None or known.view is None or known.is_member(row.signer)

    return {"lifetimes": LIFETIMES, "membership": is_admitted, "settled": is_settled, "about": subject_of}


class Actor(Protocol):
    """A role as the node runs it. `run` returns when the run has ended."""

    async def run(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Closing:
    """An actor whose learner is closed when it fails, so that it can be rebuilt in this process."""

    actor: Actor
    learner: object
    compute: ComputeThread

    async def run(self) -> None:
        """Run the actor. On an error, end the learner's processes before raising."""
        try:
            await self.actor.run()
        except Exception:
            if (close := getattr(self.learner, "close", None)) is not None:
                await self.compute.run(close)
            raise


@dataclass(frozen=True, slots=True)
class Parts:
    """Everything that a node has before it has a role."""

    config: NodeConfig
    spec: RunSpec
    key: NodeKey
    directory: HivemindDirectory
    rows: UnionDirectory
    ledger: LedgerClient
    trusted: TrustedState
    observer: Observer
    publisher: Publisher
    voice: Voice
    book: RelayBook
    relays: RelayClient
    http: httpx.AsyncClient
    compute: ComputeThread

    @property
    def state(self) -> Path:
        """The role's own folder."""
        return self.config.home / self.config.role

    @property
    def context(self) -> RunContext:
        """What the role's actor works with."""
        return RunContext(
            spec=self.spec,
            node=self.key.node,
            trusted=self.trusted,
            observer=self.observer,
            voice=self.voice,
            relays=self.relays,
            compute=self.compute,
            clock=unix_ms,
        )


async def build_worker(parts: Parts) -> Actor:
    """A worker with an engine and the run's task."""
    await parts.compute.load(import_module, "roles.worker")  # takes seconds, so not in the event loop
    from roles.worker import Worker

    engine = await parts.compute.load(_engine, parts)
    task = load_run_tasks(parts.spec, parts.config.home)
    return Worker(parts.context, engine=engine, task=task, state=parts.state)


async def build_validator(parts: Parts) -> Actor:
    """A validator with an engine and the run's task."""
    await parts.compute.load(import_module, "roles.validator")  # takes seconds, so not in the event loop
    from roles.validator import Validator

    return Validator(
        parts.context,
        ledger=parts.ledger,
        engine=await parts.compute.load(_engine, parts),
        task=load_run_tasks(parts.spec, parts.config.home),
        key=parts.key,
        state=parts.state,
    )


async def build_trainer(parts: Parts) -> Actor:
    """A trainer with the base model that the spec pins."""
    await parts.compute.load(import_module, "roles.trainer")  # takes seconds, so not in the event loop
    from roles.trainer import Trainer

    base = checked_base(parts.config, parts.spec)
    build = partial(build_learner, parts.config, parts.spec, base=base, state=parts.state)
    learner = await parts.compute.load(build)
    trainer = Trainer(parts.context, ledger=parts.ledger, learner=learner, key=parts.key, base=base, state=parts.state)
    return Closing(trainer, learner, parts.compute)


def build_relay(parts: Parts) -> Any:
    """A relay. It pays for others' registrations if it is configured to and can."""
    from roles.relay import Board, Relay, RelaySettings

    config = parts.config
    return Relay(
        parts.key,
        root=parts.state,
        run=parts.spec.run_id,
        trainers=[item.node for item in parts.spec.trainers],
        is_member=parts.trusted.is_member,
        relays=parts.book,
        http=parts.http,
        read=parts.rows.read,
        sponsor=sponsor_with(parts.ledger) if config.sponsor else None,
        spec=encode(parts.spec),
        data_sets=held_files(parts.spec, config.home),
        term_rule=parts.trusted.check_checkpoint,
        board=Board(
            run=parts.spec.run_id,
            limits=LIMITS,
            clock=unix_ms,
            **keeping_by(lambda: parts.trusted),
        ),
        settings=RelaySettings(
            max_disk=share_of_blobs(config.max_disk),
            max_blob=parts.spec.checks.max_blob,
            sponsored_per_hour=config.sponsor_hourly,
            archive=config.archive,
        ),
    )


def certificate_of(config: NodeConfig) -> Certificate | None:
    """The certificate with which a relay serves https; None if it serves plain http."""
    from roles.relay import Certificate

    if config.tls_certificate is None:
        return None
    key = config.tls_key.expanduser() if config.tls_key else None
    return Certificate(config.tls_certificate.expanduser(), key)


def check_relay(config: NodeConfig) -> None:
    """Check that these settings allow a relay. Raises ConfigError."""
    from roles.relay import BadCertificate

    try:
        if (certificate := certificate_of(config)) is not None:
            certificate.check()
    except BadCertificate as error:
        raise ConfigError(str(error)) from error
    if config.tls_key is not None and config.tls_certificate is None:
        raise ConfigError("--tls-key is the key of a certificate: name that by --tls-certificate")
    if config.sponsor and config.operator_key is None:
        raise ConfigError("a sponsor pays gas: name its operator key by --operator-key")
    if config.http_url is None and config.host in EVERY_INTERFACE:
        raise ConfigError(f"a relay on {config.host} must say where others reach it: --http-url http://HOST:PORT")
    if config.http_url is not None and not is_web_address(config.http_url):
        raise ConfigError(f"--http-url {config.http_url[:80]!r} is not an address like http://relay.example:8080")


def sponsor_with(ledger: LedgerClient) -> Callable[[RegistrationRequest | RotationRequest], Awaitable[object]]:
    """A sponsor that pays for registrations and rotations with the ledger client's operator key."""

    async def sponsor(request: RegistrationRequest | RotationRequest) -> object:
        if isinstance(request, RotationRequest):
            await ledger.rotate(request)
            return {"registered": request.new_node}
        await ledger.register(request)
        return {"registered": request.node}

    return sponsor


def _engine(parts: Parts) -> Any:
    set_threads(parts.config)
    return engine_of(parts.config, parts.spec.model)
