"""`intellect-node wallet new|import|show|sign|link|unlink`: wallets, and the one that a node works for."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from node.commands.reading import add_json_flag, add_paying_flags, add_run_flags, answer, quiet_config
from node.parsing import Parser, print_hint, print_line

if TYPE_CHECKING:
    from dht.identity import NodeKey
    from node.registration import LinkOffer

EXAMPLES = """\
  intellect-node wallet new wallet.json                                a wallet in an encrypted key store
  intellect-node wallet import wallet.json --from old.key              encrypt a key you have (- asks for it)
  intellect-node wallet show wallet.json                               its address; needs no password
  intellect-node wallet link --join RUN --wallet wallet.json           what this node earns is the wallet's
  intellect-node wallet link --join RUN --wallet 0x.. > link.json      the key is elsewhere: print what it signs
  intellect-node wallet sign link.json --wallet wallet.json            sign it there (or with any EIP-712 wallet)
  intellect-node wallet link --join RUN --wallet 0x.. --signature 0x.. and bring the signature back
  intellect-node wallet unlink --join RUN                              from now on the node earns for nobody

A password comes from --wallet-password-file, from INTELLECT_WALLET_PASSWORD, or is asked for; never from an argument.
"""
MAX_OFFER = 64 * 1024
ACTIONS = ("new", "import", "show", "sign", "link", "unlink")


def main(words: Sequence[str]) -> int:
    """Run the command."""
    parser = Parser(
        "intellect-node wallet",
        "Make, import or show a wallet, sign with it, and say which wallet a node works for.",
        examples=EXAMPLES,
    )
    parser.add_argument("action", choices=ACTIONS)
    parser.add_argument("file", nargs="?", type=Path, help="new, import, show: the wallet's file; sign: what to sign")
    parser.add_argument("--from", dest="source", metavar="FILE", help="import: a key file of hex, or - to be asked")
    parser.add_argument("--wallet", help="link: the wallet's address or file; sign: its file")
    parser.add_argument("--wallet-password-file", type=Path, help="file with the wallet's password")
    parser.add_argument("--signature", help="link: what the wallet answered to what was printed (0x..)")
    parser.add_argument("--key", type=Path, help="link, unlink: the node's key file (default: in its data folder)")
    add_run_flags(parser, only="link, unlink: ")
    add_paying_flags(parser, only="link, unlink: ")
    add_json_flag(parser)
    options = parser.parse_args(words)
    if options.action in ("link", "unlink"):
        return asyncio.run(_link(options) if options.action == "link" else _unlink(options))
    if options.file is None:
        parser.error(f"wallet {options.action} needs a file: intellect-node wallet {options.action} wallet.json")
    return {"new": _new, "import": _import, "show": _show, "sign": _sign}[options.action](options)


def _new(options: argparse.Namespace) -> int:
    from ledger.wallet import new_key

    return _save(options, new_key())


def _import(options: argparse.Namespace) -> int:
    from node.errors import UsageError
    from node.secrets import ask_secret_key, read_secret

    if options.source is None:
        raise UsageError("wallet import takes the key from a file or asks for it: --from FILE, or --from -")
    if options.source == "-":
        return _save(options, ask_secret_key())
    return _save(options, read_secret(Path(options.source).expanduser()))


def _save(options: argparse.Namespace, key: bytes) -> int:
    from dht.disk import make_folder
    from ledger.errors import WalletError
    from ledger.keystore import save_keystore
    from ledger.wallet import address_of
    from node.secrets import new_password

    path = options.file.expanduser()
    if path.exists():  # before asking for a password
        raise WalletError(f"{path} exists already; name another file, or move that one away")
    make_folder(path.parent)
    save_keystore(path, key, new_password(path, options.wallet_password_file))
    address = address_of(key)
    print_hint("keep a copy of the file and the password: nobody can restore either")
    return answer(options, {"address": address, "file": str(path)}, f"address {address}", f"file {path}")


def _show(options: argparse.Namespace) -> int:
    from ledger.keystore import is_encrypted, load_key, stated_address
    from ledger.wallet import address_of

    path = options.file.expanduser()
    encrypted = is_encrypted(path)
    address = stated_address(path) if encrypted else address_of(load_key(path))
    if not encrypted:
        print_hint(f"{path} is not encrypted: intellect-node wallet import {path}.json --from {path}")
    fields = {"address": address, "file": str(path), "encrypted": encrypted}
    return answer(options, fields, f"address {address or 'not stated'}", f"file {path}")


def _sign(options: argparse.Namespace) -> int:
    from ledger.wallet import address_of, sign_typed_data
    from node.errors import UsageError
    from node.secrets import read_secret

    if not options.wallet:
        raise UsageError("wallet sign needs the wallet's key: --wallet FILE")
    data = _read_offer(options.file)
    print_hint(
        f"signing a {data['primaryType']} on chain {data['domain'].get('chainId')}: {json.dumps(data['message'])}"
    )
    key = read_secret(Path(options.wallet).expanduser(), options.wallet_password_file)
    signature = "0x" + sign_typed_data(data, key)
    return answer(options, {"address": address_of(key), "signature": signature}, signature)


def _read_offer(path: Path) -> dict[str, Any]:
    """Read what `link` or `keys rotate` printed. Raises ConfigError for anything else, because
    foreign data is not signed here."""
    from ledger.wallet import is_ours
    from node.errors import ConfigError

    try:
        text = sys.stdin.read(MAX_OFFER) if str(path) == "-" else path.expanduser().read_text()[:MAX_OFFER]
        data = json.loads(text)
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path} is not what wallet link printed: not JSON") from error
    if not is_ours(data):
        raise ConfigError(
            f"{path} is not what wallet link or keys rotate printed; nothing else is signed here, whoever asks for it"
        )
    found: dict[str, Any] = data
    return found


async def _link(options: argparse.Namespace) -> int:
    from ledger.wallet import sign_typed_data
    from node.errors import UsageError
    from node.purse import open_purse
    from node.registration import offer_link, read_wallet, send_request

    config = quiet_config(options)
    wallet = read_wallet(config)
    if wallet.address is None:
        raise UsageError("name the wallet: --wallet 0x.., or the file of its key")
    key = _node_key(options)
    only_prints = wallet.key is None and not options.signature
    async with open_purse(config, needs_relays=config.operator_key is None and not only_prints) as purse:
        held = await purse.ledger.registration(key.node)
        if held is not None and held.wallet == wallet.address:
            return _linked(options, key.node, held.wallet, "was linked before")
        offer = await offer_link(purse.ledger, run=purse.spec.run_id, node=key.node, wallet=wallet.address)
        signature = options.signature or (sign_typed_data(offer.typed_data, wallet.key) if wallet.key else None)
        if signature is None:
            return _print_offer(offer)
        await send_request(offer.accept(key, signature), ledger=purse.ledger, relays=purse.relays)
    return _linked(options, key.node, offer.wallet, "is linked")


def _linked(options: argparse.Namespace, node: str, wallet: str | None, how: str) -> int:
    return answer(options, {"node": node, "wallet": wallet}, f"{node} {how} to {wallet}")


def _print_offer(offer: LinkOffer) -> int:
    print_line(json.dumps(offer.typed_data, indent=2))
    print_hint(
        f"this is what {offer.wallet} has to sign (EIP-712; nonce {offer.nonce}). With its key in a file elsewhere: "
        "intellect-node wallet sign THIS.json --wallet FILE"
    )
    print_hint(f"then the same command again, with --wallet {offer.wallet} --signature 0x..")
    return 0


async def _unlink(options: argparse.Namespace) -> int:
    from ledger.wallet import sign_registration
    from node.purse import open_purse
    from node.registration import next_nonce, send_request

    config, key = quiet_config(options), _node_key(options)
    async with open_purse(config, needs_relays=config.operator_key is None) as purse:
        held = await purse.ledger.registration(key.node)
        if held is None or held.wallet is None:
            return answer(options, {"node": key.node, "wallet": None}, f"{key.node} is linked to no wallet")
        request = sign_registration(
            purse.ledger.domain,
            run=purse.spec.run_id,
            node=key.node,
            nonce=await next_nonce(purse.ledger, key.node),
            sign_node=key.sign,
        )
        await send_request(request, ledger=purse.ledger, relays=purse.relays)
    print_hint(f"what {held.wallet} earned until now stays its own")
    return answer(options, {"node": key.node, "wallet": None}, f"{key.node} is no longer linked to {held.wallet}")


def _node_key(options: argparse.Namespace) -> NodeKey:
    from dht.identity import NodeKey

    folder = (options.data or Path("~/.intellect-node")).expanduser()
    return NodeKey.load(options.key.expanduser() if options.key else folder / "node.key")
