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
    from roles.spec import RunSpec

EXAMPLES = """\
  intellect-node run create run.toml --rpc URL --key owner.key --peer /ip4/../tcp/../p2p/12D3..
  intellect-node run show --spec spec.json --rpc URL --peer /ip4/../tcp/../p2p/12D3..   prints the join string too
  intellect-node run show --join 'intellect://RUN?peer=..&rpc=..' --json
"""


def main(words: Sequence[str]) -> int:
    """Run the command."""
    from node.commands.reading import quiet_events

    parser = Parser("intellect-node run", "Create a training run on a ledger, or show one.", examples=EXAMPLES)
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
    parser.add_argument("--json", action="store_true", help="show: the whole spec as JSON")
    options = parser.parse_args(words)
    quiet_events()
    if options.action == "show":
        if options.draft is not None:
            parser.error(f"run show reads a spec, not a draft: intellect-node run show --spec {options.draft}")
        return asyncio.run(_show(options))
    return asyncio.run(_create(options))


async def _create(options: argparse.Namespace) -> int:
    from dht.encoding import encode
    from ledger.client import create_run
    from ledger.keystore import load_key
    from node.errors import ConfigError, UsageError
    from node.run_creation import NOWHERE, build_spec, default_model, read_draft, terms_of

    if not (options.draft and options.key and options.rpc):
        raise UsageError(
            "run create needs a draft, --rpc and --key: intellect-node run create run.toml --rpc URL --key FILE"
        )
    key, url = load_key(options.key.expanduser()), options.rpc[0]
    draft = read_draft(options.draft)
    model = (options.model or default_model()).expanduser()
    build_spec(draft, model=model, place=NOWHERE)  # whatever is wrong is said before it costs gas
    if options.spec.exists():
        raise ConfigError(f"{options.spec} exists already; name another file by --spec, or move that one away")
    place = await _place(url, key, options.contract, draft)
    spec = build_spec(draft, model=model, place=place)
    _write_spec(options.spec, encode(spec))
    await create_run(
        url,
        key,
        contract=spec.ledger.contract,
        **terms_of(spec),
    )
    print_line(f"run {spec.run_id}\nspec {options.spec}\ncontract {spec.ledger.contract}")
    _print_join(spec.run_id, options)
    return 0


def _write_spec(path: Path, data: bytes) -> None:
    from node.errors import ConfigError

    try:
        with path.open("xb") as file:
            file.write(data)
    except OSError as error:
        raise ConfigError(f"cannot write the spec to {path}: {error.strerror}; name another file by --spec") from error


async def _place(url: str, key: bytes, contract: str | None, draft: dict[str, Any]) -> ChainPlace:
    from ledger.client import LedgerClient, deploy
    from node.errors import UsageError
    from node.run_creation import ChainPlace

    if contract is None:
        deployed = await deploy(url, key)
        return ChainPlace(deployed.chain_id, deployed.contract, deployed.code_hash, deployed.block_hash)
    block = draft.get("ledger", {}).get("deployment_block_hash")
    if block is None:
        raise UsageError(
            "with --contract the draft must state deployment_block_hash under [ledger]: the spec of another run of that "
            "contract has it (intellect-node run show --json)"
        )
    async with await LedgerClient.connect([url], contract=contract) as ledger:
        return ChainPlace(ledger.domain.chain_id, ledger.domain.contract, ledger.code_hash, str(block))


def _print_join(run: str, options: argparse.Namespace) -> None:
    from node.join import JoinString, check_places

    join = JoinString(run, peers=tuple(options.peer or ()), rpc=tuple(options.rpc or ()))
    check_places(join, where="settings")
    print_line(f"join {join}")
    missing = [name for name, given in (("peer", join.peers), ("rpc", join.rpc)) if not given]
    if missing:
        hint = " and ".join(f"&{name}=.. (or give --{name} here)" for name in missing)
        print_line(
            f"before you hand the join string out, add {hint.replace('&', '?', 1) if len(missing) == 2 else hint}"
        )


async def _show(options: argparse.Namespace) -> int:
    import json

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
    if options.json:
        print_line(json.dumps(json.loads(encode(spec)), indent=2))
        return 0
    for name, value in _summary(spec).items():
        print_line(f"{name:10} {value}")
    if not options.join:
        _print_join(spec.run_id, options)
    return 0


def _summary(spec: RunSpec) -> dict[str, object]:
    """What a reader asks first; the whole is `--json`."""
    sampling, training = spec.sampling, spec.training
    return {
        "run": spec.run_id,
        "name": spec.name,
        "model": f"{spec.model.name} ({spec.model.dtype}, {len(spec.model.files)} files)",
        "task": f"{spec.task.name}, {spec.task.size} problems",
        "sampling": f"{sampling.groups_per_submission} groups of {sampling.group_size}, at most {sampling.max_tokens} tokens",
        "training": f"{training.steps} steps, async level {training.async_level}",
        "contract": f"{spec.ledger.contract} on chain {spec.ledger.chain_id}",
        "trainers": ", ".join(item.node for item in spec.trainers),
        "validators": f"{', '.join(item.node for item in spec.validators)} (quorum {spec.quorum})",
    }
