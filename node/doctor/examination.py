"""The order of the checks: first this machine, then the connection to the run, then the run."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

import httpx

from dht.directory import HivemindDirectory
from dht.errors import NodeError, TransportError
from dht.identity import NodeKey
from dht.locks import StartError
from ledger.errors import LedgerError
from node.config import NodeConfig
from node.doctor.chain import examine_ledger
from node.doctor.finding import Finding, State, fault, ok, skipped, warning
from node.doctor.keys import examine_keys, own_node
from node.doctor.machine import examine_machine
from node.doctor.network import examine_relays, examine_seeds, judge_clock
from node.doctor.ports import examine_ports
from node.doctor.run import judge_hardware, judge_model, judge_place, judge_software, judge_tasks, read_records
from node.errors import ConfigError
from node.fitness import measure_machine
from node.join import JoinString
from node.joining import find_join, read_spec_file
from node.ledger_access import open_ledger
from node.log import quiet_libraries
from node.relay_book import RelayBook, open_relays
from node.visitor import open_as_visitor
from roles.messages import Role, nodes_key
from roles.shardcast.client import RelayClient
from roles.shardcast.errors import BadCertificate
from roles.spec import MAX_SPEC_BYTES, RunSpec, SpecError, spec_from_bytes

ROLES_COMPARED: tuple[Role, ...] = ("trainer", "validator", "relay")
"""Roles whose records show the versions in use; workers are too many."""


async def examine(config: NodeConfig) -> AsyncIterator[Finding]:
    """Yield every finding in order, as soon as it is known. Nothing that a machine or peer does makes this raise."""
    for look in (examine_machine, examine_keys, examine_ports):
        for finding in await asyncio.to_thread(_listed, look(config)):
            yield finding
    if config.join is None and config.spec is None:
        fix = "give the run's join string to look at its seeds, relays, ledger and requirements: --join"
        yield replace(skipped("run", "none is named"), fix=fix)
        return
    try:
        join = find_join(config)
    except ConfigError as error:
        yield fault("run", str(error), "get the whole join string from the run's operator")
        return
    try:
        async for finding in _examine_run(config, join):
            yield finding
    except BadCertificate as error:
        yield fault("relay_ca", str(error), "name a file of certificates in PEM, or leave relay_ca out")
    except StartError as error:
        yield fault("p2pd", str(error), "see the lines above; HIVEMIND_LOGLEVEL=DEBUG shows p2pd's own words")


def _listed(findings: Iterable[Finding]) -> list[Finding]:
    return list(findings)


async def _examine_run(config: NodeConfig, join: JoinString) -> AsyncIterator[Finding]:
    async with AsyncExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="intellect-doctor-")))
        key = NodeKey.generate()
        key.save(home / "node.key")
        directory = await stack.enter_async_context(open_as_visitor(home, join))
        quiet_libraries()
        if not join.peers:
            yield fault(
                "seed", "the join string names no peer", "get a whole one from the run's operator, or add --peer"
            )
        for finding in await examine_seeds(directory, join.peers, ours=own_node(config)) if join.peers else ():
            yield finding
        clock = judge_clock(directory.clock_skew)
        if clock is not None:
            yield clock
        http, book = await stack.enter_async_context(open_relays(directory, join, ca=config.relay_ca))
        await book.refresh()
        is_first = config.role == "relay" and config.spec is not None
        for finding in await examine_relays(http, book(), is_first=is_first):
            yield finding
        client = RelayClient(key, run=join.run, trainers=(), relays=book, http=http)
        spec, finding = await _find_spec(config, join, client)
        yield finding
        if spec is not None:
            for finding in await _examine_spec(config, join, spec, directory, book, http):
                yield finding


async def _find_spec(config: NodeConfig, join: JoinString, client: RelayClient) -> tuple[RunSpec | None, Finding]:
    """Find the spec: from a file named or kept, otherwise from any relay."""
    kept = config.home / "spec.json"
    for path in filter(None, (config.spec, kept if kept.exists() else None)):
        try:
            spec = read_spec_file(path, join.run)
            return spec, ok("run", f"{spec.name}, from {path}")
        except ConfigError as error:
            if path == config.spec:
                return None, fault("run", str(error), "name the spec that `run create` wrote for this run")
    try:
        spec = spec_from_bytes(await client.get(join.run, limit=MAX_SPEC_BYTES), join.run)
    except (TransportError, SpecError) as error:
        return None, fault("run", f"its spec cannot be had: {error}", "is the run up? A relay of it must answer")
    return spec, ok("run", f"{spec.name}, by its id from a relay")


async def _examine_spec(
    config: NodeConfig,
    join: JoinString,
    spec: RunSpec,
    directory: HivemindDirectory,
    book: RelayBook,
    http: httpx.AsyncClient,
) -> list[Finding]:
    found = await examine_ledger(config, spec, join.rpc)
    has_ledger = any(finding.check == "ledger" and finding.state is State.OK for finding in found)
    keys = [nodes_key(spec.run_id, role) for role in ROLES_COMPARED]
    try:
        rows = await directory.read(keys)
    except TransportError:
        rows = {}
    found.append(judge_software(read_records((row for key in keys for row in rows.get(key, ())), spec=spec)))
    found.append(judge_place(config, spec))
    found.append(await asyncio.to_thread(judge_tasks, spec, role=config.role))
    if config.role == "trainer":
        found.append(await asyncio.to_thread(judge_model, config, spec))
    if has_ledger:
        found += await _examine_machine_for(config, join, spec, book, http)
    return found


async def _examine_machine_for(
    config: NodeConfig, join: JoinString, spec: RunSpec, book: RelayBook, http: httpx.AsyncClient
) -> list[Finding]:
    trainers = [item.node for item in spec.trainers]
    client = RelayClient(NodeKey.generate(), run=spec.run_id, trainers=trainers, relays=book, http=http)
    try:
        async with await open_ledger(spec, join.rpc, patience=5.0) as ledger:
            hardware = await measure_machine(spec, folder=config.home, client=client, commits=ledger.commits)
    except (LedgerError, NodeError) as error:
        return [warning("requirements", f"not looked at: {error}", "look again when the ledger answers")]
    return judge_hardware(spec, hardware, role=config.role)
