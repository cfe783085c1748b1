"""From nothing to a run on a fresh chain: starts the chain, deploys, creates the run, writes every node's files."""

from __future__ import annotations

import asyncio
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path

from dht.encoding import encode
from ledger.client import LedgerClient
from ledger.deployment import deploy
from ledger.errors import LedgerError
from node.base_model import default_model
from node.data_sets import FOLDER
from node.errors import ConfigError, UsageError
from node.join import JoinString
from node.run_creation import NOWHERE, ChainPlace, build_spec, draft_table, read_draft
from node.testnet.plan import NodePlan, TestnetOptions, TestnetPlan, make_plan, write_node
from node.testnet.processes import Child, Forks, node_command
from roles.run_terms import terms_of
from roles.spec import RunSpec

LEASE_SECONDS = 20
"""Lease of a testnet with a stand-by trainer, unless its draft says otherwise: short, so that a
killed leader is soon replaced."""
MOST_COINS = 10**23
"""Most base units that a testnet's run is funded with: a tenth of its owner's coins."""
CHAIN_SECONDS = 60.0
"""Timeout for the chain's first answer; importing py-evm alone takes some seconds on a busy machine."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """A run ready to be joined."""

    spec: RunSpec
    join: JoinString
    rpc: str
    join_file: Path


async def start_chain(plan: TestnetPlan, port: int) -> tuple[Child, str]:
    """Start the chain process and wait until it answers. Returns it and its URL. Raises
    ConfigError with its last output."""
    command = [sys.executable, "-m", "node.testnet.chain", "--port", str(port), "--seed", plan.chain_seed]
    command += ["--journal", str(plan.directory / "chain" / "journal")]
    chain = Child("chain", command, output=plan.directory / "chain" / "output.log")
    await chain.start()
    try:
        async with asyncio.timeout(CHAIN_SECONDS):
            while not any(line.startswith("devnet ready") for line in chain.last_lines()):
                if not chain.is_running:
                    raise ConfigError("the chain did not start: " + " ".join(chain.last_lines()))
                await asyncio.sleep(0.05)
    except BaseException:
        await chain.stop()
        raise
    return chain, f"http://127.0.0.1:{port}"


async def prepare_run(plan: TestnetPlan, options: TestnetOptions, rpc: str) -> Prepared:
    """Deploy the contract, create the run, write spec, join string and node files. Raises ConfigError or LedgerError."""
    model = options.model or default_model()
    deployed = await deploy(rpc, plan.owner_key)
    place = ChainPlace(deployed.chain_id, deployed.contract, deployed.code_hash, deployed.block_hash)
    spec = build_spec(
        _adapted(options),
        model=model,
        place=place,
        validators=[node.as_operator() for node in plan.validators],
        trainers=[node.as_operator() for node in plan.trainers],
        data_sets=plan.directory / FOLDER,
    )
    await _create(rpc, plan, spec)
    join = JoinString(spec.run_id, peers=tuple(relay.peer for relay in plan.relays), rpc=(rpc,))
    spec_file, join_file = plan.directory / "spec.json", plan.directory / "join"
    spec_file.write_bytes(encode(spec))
    join_file.write_text(f"{join}\n")
    for node in plan.nodes:
        write_node(node, join=str(join_file), spec=spec_file, model=model)
    return Prepared(spec, join, rpc, join_file)


def check_draft(options: TestnetOptions) -> None:
    """Check that a run can be created from these options, before anything is started. Raises UsageError."""
    plan = make_plan(options)
    try:
        build_spec(
            _adapted(options),
            model=options.model or default_model(),
            place=NOWHERE,
            validators=[node.as_operator() for node in plan.validators],
            trainers=[node.as_operator() for node in plan.trainers],
        )
    except ConfigError as error:
        raise UsageError(str(error)) from error


def _adapted(options: TestnetOptions) -> dict[str, object]:
    draft = read_draft(options.draft)
    draft["quorum"] = options.quorum
    draft["training"] = {**draft_table(draft, "training"), "steps": options.steps}
    if options.trainers > 1:
        draft["terms"] = {"lease_seconds": LEASE_SECONDS, **draft_table(draft, "terms")}
    return draft


async def _create(rpc: str, plan: TestnetPlan, spec: RunSpec) -> None:
    try:
        async with await LedgerClient.connect(
            [rpc], contract=spec.ledger.contract, run=spec.run_id, operator_key=plan.owner_key
        ) as ledger:
            await ledger.create_run(**terms_of(spec))
            await _fund(ledger, spec)
    except LedgerError as error:
        raise ConfigError(f"the run could not be created on the ledger: {error}") from error


async def _fund(ledger: LedgerClient, spec: RunSpec) -> None:
    """Deposit the maximum cost of all epochs of the run."""
    amount = int(spec.rewards.budget) * (spec.training.steps // spec.epoch.checkpoints + 2)
    if amount and spec.rewards.token is None:
        await ledger.fund(min(amount, MOST_COINS))


def node_child(node: NodePlan, forks: Forks | None = None) -> Child:
    """The process of a node: the command that anybody else would type, with its
    configuration file, or one that cheats."""
    command = node_command("--role", node.role, "--config", str(node.config_file))
    if node.adversary:
        command = [sys.executable, "-m", "node.testnet.adversaries", node.adversary, str(node.config_file)]
    light = node.role == "relay"  # imports little, and is needed before the fork server is ready
    return Child(node.name, command, output=node.home / "output.log", forks=None if light else forks)


def join_command(prepared: Prepared, home: Path) -> str:
    """The command to type in a second terminal to add a worker."""
    wallet = "0x000000000000000000000000000000000000dEaD"
    arguments = ["--role", "worker", "--join", str(prepared.join_file), "--data", str(home), "--wallet", wallet]
    return shlex.join([*_program(), *arguments])


def restart_command(node: NodePlan) -> str:
    """The command that restarts a node that has ended; it resumes where it was."""
    return shlex.join([*_program(), "--role", node.role, "--config", str(node.config_file)])


def _program() -> list[str]:
    """The command that runs this program from the user's current folder."""
    program = Path(sys.executable).with_name("intellect-node")
    if not program.exists():
        return [sys.executable, "-m", "node"]
    here = Path.cwd()
    return [str(program.relative_to(here) if program.is_relative_to(here) else program)]
