"""Finds the run: its spec by id, from disk or any relay, and its contract, which must agree with the spec."""

from __future__ import annotations

from pathlib import Path

import structlog

from dht.disk import write_durably
from dht.encoding import encode
from dht.errors import TransportError
from ledger.client import LedgerClient
from ledger.errors import LedgerError, LedgerMismatch, LedgerUnavailable
from node.config import NodeConfig
from node.defaults import START_PATIENCE_SECONDS
from node.errors import ConfigError, UsageError
from node.join import JoinString, check_places, read_join
from node.ledger_access import open_ledger, policy_of
from node.relay_book import RelayBook
from node.running import patiently
from node.secrecy import shown_url
from roles.run_terms import differing_terms, terms_of
from roles.shardcast.client import RelayClient
from roles.spec import MAX_SPEC_BYTES, RunSpec, SpecError, spec_from_bytes

log = structlog.get_logger()


def find_join(config: NodeConfig) -> JoinString:
    """The run's id and every address given, from join string, spec file and settings. Raises UsageError."""
    if config.join:
        join = read_join(config.join)
    elif config.spec:
        join = JoinString(read_spec_file(config.spec).run_id)
    else:
        raise UsageError(
            "no run is named: add --join with the run's join string, intellect://.. or a file that holds it; the run's "
            "operator hands it out, and a testnet prints the whole command (intellect-node testnet)"
        )
    check_places(JoinString(join.run, config.peer, config.rpc, config.relay), where="settings")
    return JoinString(
        join.run,
        peers=_merged(join.peers, config.peer),
        rpc=_merged(join.rpc, config.rpc),
        relays=_merged(join.relays, config.relay),
    )


def _merged(first: tuple[str, ...], second: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys((*first, *second)))


def read_spec_file(path: Path, run: str | None = None) -> RunSpec:
    """A canonical spec from disk; of this run, if one is named. Raises UsageError."""
    from dht.encoding import sha256

    try:
        with path.expanduser().open("rb") as file:
            data = file.read(MAX_SPEC_BYTES + 1)
        return spec_from_bytes(data, run or sha256(data))
    except OSError as error:
        raise UsageError(f"cannot read the run's spec {path}: {error.strerror}") from error
    except SpecError as error:
        raise UsageError(f"{path} is not a run's spec as `run create` writes it: {error}") from error


async def fetch_spec(config: NodeConfig, *, run: str, book: RelayBook, client: RelayClient) -> RunSpec:
    """The spec: from the file named, from our own copy, otherwise from any relay. It is stored in the data folder."""
    kept = config.home / "spec.json"
    if config.spec:
        return read_spec_file(config.spec, run)
    if kept.exists():
        try:
            return read_spec_file(kept, run)
        except ConfigError:
            log.info("spec.outdated", file=str(kept))  # the folder was used for another run before

    async def attempt() -> bytes:
        await book.refresh()
        if not book():
            raise TransportError("no relay of the run is known yet")
        return await client.get(run, limit=MAX_SPEC_BYTES)

    data = await patiently(
        attempt,
        event="run.not_found_yet",
        hint=f"no peer or relay knows the run {run[:12]}..; check the join string, and that the run is up",
    )
    spec = spec_from_bytes(data, run)
    write_durably(kept, encode(spec))
    return spec


async def join_ledger(
    config: NodeConfig,
    spec: RunSpec,
    urls: tuple[str, ...],
    key: bytes | None,
    *,
    patience: float = START_PATIENCE_SECONDS,
) -> LedgerClient:
    """Connect to the run's contract, waiting while it is down, and check its terms. Raises ConfigError, LedgerError."""

    async def attempt() -> LedgerClient:
        policy = policy_of(config, spec.ledger.chain_id)
        return await open_ledger(
            spec, urls, operator_key=key, state=config.home / "ledger", patience=5.0, policy=policy
        )

    ledger = await patiently(
        attempt,
        event="ledger.unreachable",
        hint=f"no ledger end-point answers ({', '.join(map(shown_url, urls))}); is the chain up?",
        patience=patience,
    )
    try:
        await patiently(
            lambda: _check_terms(ledger, spec), event="ledger.unreachable", hint="the ledger stopped answering"
        )
    except BaseException:
        await ledger.close()
        raise
    if len(urls) == 1:
        log.info("ledger.trusted", rpc=shown_url(urls[0]), why="the only end-point given: what it says is believed")
    return ledger


async def _check_terms(ledger: LedgerClient, spec: RunSpec) -> None:
    try:
        terms = await ledger.terms()
    except LedgerUnavailable:
        raise
    except LedgerError as error:
        raise LedgerMismatch(f"the contract does not know the run {spec.run_id[:12]}..: {error}") from error
    if differ := differing_terms(terms, terms_of(spec)):
        raise LedgerMismatch(
            f"the contract's terms of this run are not the spec's ({', '.join(differ)}): somebody else created its id "
            "first"
        )
