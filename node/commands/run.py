"""`intellect-node run create|show`: make a training run out of a draft, or show one."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from node.cli import Parser, print_line

if TYPE_CHECKING:
    from node.run_creation import ChainPlace


def main(words: Sequence[str]) -> int:
    """Run the command."""
    from node.commands.reading import quiet_events

    parser = Parser("intellect-node run", "Create a training run on a ledger, or show one.")
    parser.add_argument("action", choices=("create", "show"))
    parser.add_argument("draft", nargs="?", type=Path, help="create: the run as TOML (see node/testnet/run.toml)")
    parser.add_argument(
        "--spec", type=Path, default=Path("spec.json"), help="create: where to write; show: what to read"
    )
    parser.add_argument("--rpc", action="append", help="URL of the ledger")
    parser.add_argument("--peer", action="append", help="DHT peers for the join string, like /ip4/../tcp/../p2p/12D3..")
    parser.add_argument("--key", type=Path, help="create: key file of the account that pays and owns the run")
    parser.add_argument("--contract", help="create: the contract to use (default: deploy one)")
    parser.add_argument("--model", type=Path, help="create: folder of the base model (default: the built-in one)")
    parser.add_argument("--join", help="show: a join string, instead of --spec")
    options = parser.parse_args(words)
    quiet_events()
    if options.action == "show":
        return asyncio.run(_show(options))
    return asyncio.run(_create(options))


async def _create(options: argparse.Namespace) -> int:
    from dht.encoding import encode
    from ledger.client import create_run
    from ledger.wallet import load_key
    from node.errors import UsageError
    from node.run_creation import build_spec, default_model, operators_of, read_draft

    if not (options.draft and options.key and options.rpc):
        raise UsageError(
            "run create needs a draft, --rpc and --key: intellect-node run create run.toml --rpc URL --key FILE"
        )
    key, url = load_key(options.key.expanduser()), options.rpc[0]
    draft = read_draft(options.draft)
    if draft.get("validators") is None or draft.get("trainers") is None:
        build_spec(draft, model=options.model or default_model(), place=_nowhere())  # says what is missing, for no gas
    place = await _place(url, key, options.contract, draft)
    spec = build_spec(draft, model=(options.model or default_model()).expanduser(), place=place)
    options.spec.write_bytes(encode(spec))
    await create_run(
        url,
        key,
        contract=spec.ledger.contract,
        run=spec.run_id,
        validators=operators_of(spec.validators),
        trainers=operators_of(spec.trainers),
        quorum=spec.quorum,
        epoch_checkpoints=spec.epoch.checkpoints,
        epoch_max_seconds=spec.epoch.max_seconds,
        round_seconds=spec.epoch.round_seconds,
    )
    print_line(f"run {spec.run_id}\nspec {options.spec}\ncontract {spec.ledger.contract}")
    _print_join(spec.run_id, options)
    return 0


def _nowhere() -> ChainPlace:
    from node.run_creation import ChainPlace

    return ChainPlace(0, "0x" + "00" * 20, "0" * 64, "0" * 64)


async def _place(url: str, key: bytes, contract: str | None, draft: dict[str, Any]) -> ChainPlace:
    from ledger.client import LedgerClient, deploy
    from node.errors import UsageError
    from node.run_creation import ChainPlace

    if contract is None:
        deployed = await deploy(url, key)
        return ChainPlace(deployed.chain_id, deployed.contract, deployed.code_hash, deployed.block_hash)
    block = draft.get("ledger", {}).get("deployment_block_hash")
    if block is None:
        raise UsageError("with --contract the draft must state ledger.deployment_block_hash (see that contract's runs)")
    async with await LedgerClient.connect([url], contract=contract) as ledger:
        return ChainPlace(ledger.domain.chain_id, ledger.domain.contract, ledger.code_hash, str(block))


def _print_join(run: str, options: argparse.Namespace) -> None:
    from node.join import JoinString

    join = JoinString(run, peers=tuple(options.peer or ()), rpc=tuple(options.rpc or ()))
    print_line(f"join {join}")
    if not join.peers:
        print_line("add &peer=.. of a relay to the join string before you hand it out (or --peer here)")


async def _show(options: argparse.Namespace) -> int:
    from dht.encoding import encode
    from node.joining import read_spec_file

    if options.join:
        from node.config import NodeConfig
        from node.visitor import visit_run

        config = NodeConfig(
            role="worker", join=options.join, rpc=tuple(options.rpc or ()), peer=tuple(options.peer or ())
        )
        async with visit_run(config) as visit:
            spec = visit.spec
    else:
        spec = read_spec_file(options.spec)
    import json

    print_line(json.dumps(json.loads(encode(spec)), indent=2))
    print_line(f"run {spec.run_id}")
    if not options.join:
        _print_join(spec.run_id, options)
    return 0
