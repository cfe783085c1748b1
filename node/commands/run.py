"""`intellect-node run create|show|fund|pause|reclaim|validators|upgrade`: create, show and manage a training run."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from node.defaults import MAX_FEE_GWEI
from node.parsing import Parser, print_line

if TYPE_CHECKING:
    from node.join import JoinString
    from roles.spec import RunSpec

EXAMPLES = """\
  intellect-node run create run.toml --rpc URL --key owner.key --peer /ip4/../tcp/../p2p/12D3..
  intellect-node run show --spec spec.json --rpc URL --peer /ip4/../tcp/../p2p/12D3..   prints the join string too
  intellect-node run show --join 'intellect://RUN?peer=..&rpc=..' --json
  intellect-node run fund 2.5eth --spec spec.json --rpc URL --key any.key        anybody may add to the rewards
  intellect-node run fund --spec spec.json --rpc URL                             what is there, promised and paid
  intellect-node run pause on --spec spec.json --rpc URL --key owner.key         claims and withdrawals go on
  intellect-node run validators show --spec spec.json --rpc URL
  intellect-node run validators propose set.toml --spec spec.json --rpc URL --key owner.key
  intellect-node run validators apply --spec spec.json --rpc URL --key any.key   once their time has come
  intellect-node run upgrade 0.3.0 --messages 2 --from-step 120 --join run.join --key owner.key   asks every node for it
  intellect-node run reclaim 0x.. --spec spec.json --rpc URL --key owner.key     what nobody earned, after the end

Type a killed `run create` again and it continues. set.toml holds quorum = 2, and [[validators]] as in a draft.
"""
ACTIONS = ("create", "show", "fund", "pause", "reclaim", "validators", "upgrade")
SPEC = Path("spec.json")


def main(words: Sequence[str]) -> int:
    """Run the command."""
    from node.commands.reading import quiet_events

    parser = _parser()
    options = parser.parse_args(words)
    quiet_events()
    if options.action == "show":
        if options.what is not None:
            parser.error(f"run show reads a spec, not a draft: intellect-node run show --spec {options.what}")
        return asyncio.run(_show(options))
    if options.action == "create":
        return asyncio.run(_create(options))
    if options.action == "upgrade":
        from node.commands.run_upgrade import upgrade

        return asyncio.run(upgrade(options))
    from node.commands.run_rule import rule

    return asyncio.run(rule(options))


def _parser() -> Parser:
    parser = Parser("intellect-node run", "Create a training run on a ledger, show it, or rule it.", examples=EXAMPLES)
    parser.add_argument("action", choices=ACTIONS)
    parser.add_argument(
        "what",
        nargs="?",
        help="create: the draft (TOML); fund: an amount, or nothing to see what is there; pause: on or off; reclaim: the "
        "address to pay; validators: show, propose or apply; upgrade: the version",
    )
    parser.add_argument(
        "file", nargs="?", type=Path, help="validators: for propose, a TOML file with quorum and [[validators]]"
    )
    parser.add_argument("--spec", type=Path, default=SPEC, help="create: where to write; else: what to read")
    parser.add_argument("--rpc", action="append", help="URL of the ledger; may be repeated")
    parser.add_argument(
        "--peer", action="append", help="create, show: DHT peers for the join string, like /ip4/../tcp/../p2p/12D3.."
    )
    parser.add_argument("--relay", action="append", help="base URL of a relay; may be repeated")
    parser.add_argument("--key", "--operator-key", dest="key", type=Path, help="key file of the account that pays")
    parser.add_argument("--operator-password-file", type=Path, help="file with its password, where it is encrypted")
    parser.add_argument("--data", type=Path, help="folder for what is known of the run (default: ~/.intellect-node)")
    parser.add_argument("--contract", help="create: the contract to use (default: deploy one)")
    parser.add_argument(
        "--max-fee-gwei", type=int, default=MAX_FEE_GWEI, help="create: the most gas may cost; 0: anything"
    )
    parser.add_argument("--model", type=Path, help="create: folder of the base model (default: the built-in one)")
    parser.add_argument("--join", help="a join string, instead of --spec")
    parser.add_argument("--messages", type=int, help="upgrade: least message version (default: this program's)")
    parser.add_argument("--from-step", type=int, help="upgrade: the first step for which it is needed")
    parser.add_argument(
        "--by", help="upgrade: when you expect that step, as 2027-01-31T12:00 (UTC), for people to read"
    )
    parser.add_argument("--json", action="store_true", help="the answer (show: the whole spec) as JSON")
    return parser


async def _create(options: argparse.Namespace) -> int:
    from node.base_model import default_model
    from node.creating import Wish, create
    from node.errors import UsageError
    from node.run_creation import read_draft
    from node.secrets import OPERATOR_PASSWORD, read_secret

    if not (options.what and options.key and options.rpc):
        raise UsageError(
            "run create needs a draft, --rpc and --key: intellect-node run create run.toml --rpc URL --key FILE"
        )
    _join_string("", options)  # report a wrong address before gas is spent
    wish = Wish(
        draft=read_draft(Path(options.what)),
        model=(options.model or default_model()).expanduser(),
        spec=options.spec.expanduser(),
        urls=options.rpc,
        key=read_secret(options.key.expanduser(), options.operator_password_file, OPERATOR_PASSWORD),
        contract=options.contract,
        max_fee_gwei=options.max_fee_gwei,
    )
    spec = await create(wish)
    if options.json:
        import json

        told = {"run": spec.run_id, "spec": str(options.spec), "contract": spec.ledger.contract}
        print_line(json.dumps({**told, "join": str(_join_string(spec.run_id, options))}))
        return 0
    print_line(f"run {spec.run_id}\nspec {options.spec}\ncontract {spec.ledger.contract}")
    for name in ("model", "task", "rewards"):
        print_line(f"{name} {_summary(spec)[name]}")
    _print_join(spec.run_id, options)
    return 0


def _print_join(run: str, options: argparse.Namespace) -> None:
    join = _join_string(run, options)
    print_line(f"join {join}")
    missing = [name for name, given in (("peer", join.peers), ("rpc", join.rpc)) if not given]
    if missing:
        hint = " and ".join(f"&{name}=.. (or give --{name} here)" for name in missing)
        print_line(
            f"before you hand the join string out, add {hint.replace('&', '?', 1) if len(missing) == 2 else hint}"
        )


def _join_string(run: str, options: argparse.Namespace) -> JoinString:
    """The run's join string with the given addresses. Raises UsageError for an invalid one."""
    from node.join import JoinString, check_places

    peers, rpc, relays = (tuple(given or ()) for given in (options.peer, options.rpc, options.relay))
    join = JoinString(run, peers, rpc, relays)
    check_places(join, where="settings")
    return join


async def _show(options: argparse.Namespace) -> int:
    import json

    from dht.encoding import encode
    from node.joining import read_spec_file

    if options.join:
        from node.commands.run_rule import config_of
        from node.visitor import visit_run

        async with visit_run(config_of(options, key=False)) as visit:
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
    """The fields most asked for; `--json` prints the whole spec."""
    from node.amounts import show_rewards
    from node.terminal import count

    sampling, training, rewards = spec.sampling, spec.training, spec.rewards
    groups = f"{count(sampling.groups_per_submission, 'group')} of {sampling.group_size}"
    return {
        "run": spec.run_id,
        "name": spec.name,
        "model": f"{spec.model.name} ({spec.model.dtype}, {count(len(spec.model.files), 'file')})",
        "task": "; ".join(f"{task.name}, {count(task.size, 'problem')}" for task in spec.tasks),
        **({"tool": f"{spec.tool.name}, at most {spec.tool.max_calls} calls"} if spec.tool else {}),
        "sampling": f"{groups}, at most {sampling.max_tokens} tokens",
        "training": f"{count(training.steps, 'step')}, async level {training.async_level}",
        "rewards": show_rewards(int(rewards.budget), int(rewards.min_stake), rewards.token),
        "contract": f"{spec.ledger.contract} on chain {spec.ledger.chain_id}",
        "trainers": ", ".join(item.node for item in spec.trainers),
        "validators": f"{', '.join(item.node for item in spec.validators)} (quorum {spec.quorum})",
    }
