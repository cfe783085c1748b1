"""`intellect-node keys new|show|backup|restore|rotate`: the node's key, and operator or wallet keys."""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from node.commands.reading import add_json_flag, add_paying_flags, add_run_flags, answer, quiet_config
from node.parsing import Parser, print_hint, print_line

if TYPE_CHECKING:
    from dht.identity import NodeKey
    from ledger.records import Registration
    from node.purse import Purse
    from node.registration import Wallet

EXAMPLES = """\
  intellect-node keys new --key ./node.key             a node's identity
  intellect-node keys new --operator ./operator.key    an account: pays gas, or is a wallet (encrypted: wallet new)
  intellect-node keys show --key ./node.key            its node id, as a run's spec names it
  intellect-node keys backup node.backup               the node's key in an encrypted file that may lie anywhere
  intellect-node keys restore node.backup              and back, on this machine or another
  intellect-node keys rotate new.key --join RUN        another key in its place: contributions and history go with it
  intellect-node keys rotate new.key --join RUN --old 12D3.. --wallet wallet.json     the old one is lost or stolen

The password of a backup comes from --password-file, from INTELLECT_KEY_PASSWORD, or is asked for.
"""
ACTIONS = ("new", "show", "backup", "restore", "rotate")
DEFAULT_KEY = Path("~/.intellect-node/node.key")


def main(words: Sequence[str]) -> int:
    """Run the command."""
    parser = Parser(
        "intellect-node keys",
        "Make, show, back up, restore or replace keys. A node key identifies a node; an operator or wallet key signs "
        "on the ledger.",
        examples=EXAMPLES,
    )
    parser.add_argument("action", choices=ACTIONS)
    parser.add_argument("file", nargs="?", type=Path, help="backup, restore: the backup; rotate: the new key's file")
    parser.add_argument("--key", type=Path, help=f"the node's key file (default: {DEFAULT_KEY})")
    parser.add_argument("--operator", type=Path, help="new, show: an operator (or wallet) key file instead")
    parser.add_argument("--password-file", type=Path, help="backup, restore: file with the backup's password")
    parser.add_argument("--old", metavar="NODE", help="rotate: id of the old node, where its key is lost")
    parser.add_argument("--wallet", help="rotate: the wallet signs in the old key's place: its file, or its address")
    parser.add_argument("--wallet-password-file", type=Path, help="rotate: file with the wallet's password")
    parser.add_argument("--signature", help="rotate: what the wallet answered to what was printed (0x..)")
    add_run_flags(parser, only="rotate: ")
    add_paying_flags(parser, only="rotate: ")
    add_json_flag(parser)
    options = parser.parse_args(words)
    path = _key_path(options)
    if options.action in ("new", "show") and options.key is not None and options.operator is not None:
        parser.error(f"one key at a time: keys {options.action} --key FILE, then keys {options.action} --operator FILE")
    if options.action in ("backup", "restore", "rotate") and options.file is None:
        parser.error(f"keys {options.action} needs a file: intellect-node keys {options.action} FILE")
    match options.action:
        case "backup":
            return _backup(options, path)
        case "restore":
            return _restore(options, path)
        case "rotate":
            return asyncio.run(_rotate(options, path))
    if options.operator is not None:
        return _operator(options, options.operator.expanduser(), make=options.action == "new")
    return _node(options, path, make=options.action == "new")


def _key_path(options: argparse.Namespace) -> Path:
    if options.key is not None:
        return Path(options.key).expanduser()
    return (options.data.expanduser() / "node.key") if options.data else DEFAULT_KEY.expanduser()


def _node(options: argparse.Namespace, path: Path, *, make: bool) -> int:
    from dht.identity import NodeKey

    if make:
        key = NodeKey.generate()
        key.save(path)
        given = "" if path == DEFAULT_KEY.expanduser() else f" --key {path}"
        print_hint(f"keep a copy (intellect-node keys backup node.backup{given}), then take part with:")
        print_hint(f"intellect-node --role worker{given} --join .. --wallet ..")
    else:
        key = NodeKey.load(path)
    return answer(options, {"node": key.node, "file": str(path)}, f"node {key.node}", f"file {path}")


def _operator(options: argparse.Namespace, path: Path, *, make: bool) -> int:
    from dht.disk import make_folder
    from ledger.keystore import is_encrypted, load_key, save_key, stated_address
    from ledger.wallet import address_of, new_key

    if make:
        make_folder(path.parent)
        save_key(path, new_key())
        print_hint(
            "the file is not encrypted (intellect-node wallet new makes one that is): keep it to yourself, and a copy"
        )
        print_hint("elsewhere. Name it by --operator-key (pays gas) or by --wallet (is credited)")
    address = stated_address(path) if is_encrypted(path) else address_of(load_key(path))
    return answer(options, {"address": address, "file": str(path)}, f"address {address}", f"file {path}")


def _backup(options: argparse.Namespace, path: Path) -> int:
    from dht.disk import write_new
    from dht.identity import NodeKey
    from dht.key_backup import seal_backup
    from node.errors import ConfigError
    from node.secrets import NODE_KEY_PASSWORD, new_password

    key, target = NodeKey.load(path), options.file.expanduser()
    if target.exists():
        raise ConfigError(f"{target} exists already; name another file")
    data = seal_backup(key, new_password(target, options.password_file, NODE_KEY_PASSWORD))
    write_new(target, data)
    print_hint("store it elsewhere, and its password apart from it: together they are the node")
    return answer(options, {"node": key.node, "file": str(target)}, f"node {key.node}", f"backup {target}")


def _restore(options: argparse.Namespace, path: Path) -> int:
    from dht.errors import IdentityError
    from dht.key_backup import MAX_BACKUP, backed_up_node, open_backup
    from node.secrets import NODE_KEY_PASSWORD, known_password

    source = options.file.expanduser()
    if path.exists():
        raise IdentityError(f"{path} exists already; move it away, or name another file by --key")
    with source.open("rb") as file:
        data = file.read(MAX_BACKUP + 1)
    backed_up_node(data)  # do not ask for a password if the file is not a backup
    key = open_backup(data, known_password(source, options.password_file, NODE_KEY_PASSWORD))
    key.save(path)
    print_hint("one key, one machine: two nodes with the same key stop each other")
    return answer(options, {"node": key.node, "file": str(path)}, f"node {key.node}", f"file {path}")


async def _rotate(options: argparse.Namespace, path: Path) -> int:
    from dht.identity import NodeKey
    from node.purse import open_purse
    from node.registration import read_wallet

    config = quiet_config(options)
    wallet = read_wallet(config)
    old = None if options.old else NodeKey.load(path)
    old_node = old.node if old else str(options.old)
    new_path = options.file.expanduser()
    if not new_path.exists():  # kept even if the command fails: a rotation already sent needs it
        NodeKey.generate().save(new_path)
    new = NodeKey.load(new_path)
    only_prints = bool(wallet.address and wallet.key is None and not options.signature)
    async with open_purse(config, needs_relays=config.operator_key is None and not only_prints) as purse:
        held = await purse.ledger.registrations()
        if new.node in held and old_node in held[new.node].previous:
            return _rotated(options, old_node, new, "took its place before")
        _check_place(purse, held.get(old_node), old_node)
        offer = await _signed(options, purse, old=old, old_node=old_node, new=new, wallet=wallet)
        if offer is not None:
            return _print_offer(offer, wallet.address)
    return _rotated(options, old_node, new, "is in its place")


async def _signed(
    options: argparse.Namespace, purse: Purse, *, old: NodeKey | None, old_node: str, new: NodeKey, wallet: Wallet
) -> dict[str, Any] | None:
    """Sign and send the rotation. If the wallet's key is elsewhere, return what the wallet has to sign first."""
    from ledger.records import RotationRequest
    from ledger.wallet import sign_typed_data
    from node.errors import UsageError
    from node.registration import checked_signature, next_nonce, send_request

    nonce = await next_nonce(purse.ledger, old_node)
    messages = purse.ledger.rotation_messages(old_node, new.node, wallet=wallet.address, nonce=nonce)
    by_wallet = by_old = ""
    if messages.wallet is not None and wallet.address is not None:
        signature = options.signature or (sign_typed_data(messages.wallet, wallet.key) if wallet.key else None)
        if signature is None:
            return messages.wallet
        by_wallet = checked_signature(messages.wallet, signature, wallet.address)
    elif old is not None:
        by_old = old.sign(messages.node).hex()
    else:
        raise UsageError("without the old key its wallet must sign: --wallet FILE, or --wallet 0x..")
    by_new = new.sign(messages.node).hex()
    request = RotationRequest(purse.spec.run_id, old_node, new.node, wallet.address, nonce, by_wallet, by_old, by_new)
    await send_request(request, ledger=purse.ledger, relays=purse.relays)
    return None


def _check_place(purse: Purse, held: Registration | None, node: str) -> None:
    from node.errors import ConfigError

    if node in {item.node for item in (*purse.spec.trainers, *purse.spec.validators)}:
        raise ConfigError(f"{node} stands in the run's spec: a trainer's or validator's key cannot be replaced")
    if held is None:
        raise ConfigError(f"{node} is not registered in this run: there is nothing to keep; start with the new key")


def _rotated(options: argparse.Namespace, old_node: str, new: NodeKey, how: str) -> int:
    print_hint(f"stop the node and start it with --key {options.file}; the old key is of no use any more")
    return answer(options, {"old": old_node, "node": new.node}, f"{new.node} {how}: {old_node}")


def _print_offer(offer: dict[str, Any], wallet: str | None) -> int:
    print_line(json.dumps(offer, indent=2))
    print_hint(f"this is what {wallet} has to sign (EIP-712): intellect-node wallet sign THIS.json --wallet FILE")
    print_hint(f"then the same command again, with --wallet {wallet} --signature 0x..")
    return 0
