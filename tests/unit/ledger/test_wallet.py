"""Keys, node ids, addresses and what is signed."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from eth_account import Account
from eth_account.messages import encode_typed_data

from ledger.errors import WalletError
from ledger.keystore import load_key, load_keystore, save_key, save_keystore
from ledger.wallet import (
    Domain,
    address_of,
    check_node_signature,
    checked_address,
    new_key,
    node_from_public_key,
    public_key_from_node,
    recover_typed_data,
    sign_typed_data,
    tally_typed_data,
)
from tests.contract.harness import KEYS, NODE_KEYS, NODES, make_proposal, make_registration, message_of

DOMAIN = Domain(1, address_of(KEYS[3]))


def test_node_from_public_key__is_the_libp2p_peer_id() -> None:
    # From the libp2p peer-id specification: its Ed25519 test key.
    public = bytes.fromhex("1ed1e8fae2c4a144b8be8fd4b47bf3d3b34b871c3cacf6010f0e42d474fce27e")
    assert node_from_public_key(public) == "12D3KooWBtg3aaRMjxwedh83aGiUkwSxDwUZkzuJcfaqUmo7R3pq"
    assert public_key_from_node("12D3KooWBtg3aaRMjxwedh83aGiUkwSxDwUZkzuJcfaqUmo7R3pq") == public


@pytest.mark.parametrize(
    "node", ["", "12D3", NODES[0][:-1], NODES[0] + "1", "0OIl", "é", "1" * 10_000, "Qm" + "1" * 44]
)
def test_public_key_from_node__refuses(node: str) -> None:
    with pytest.raises(WalletError):
        public_key_from_node(node)


def test_checked_address__finds_a_wrong_digit() -> None:
    address = address_of(KEYS[0])
    assert checked_address(address.lower()) == address
    for wrong in (address[:-1], address + "0", address[2:], "0x" + "0" * 40, address.swapcase(), "0x" + "g" * 40, ""):
        with pytest.raises(WalletError):
            checked_address(wrong)


def test_load_key__only_a_private_file(tmp_path: Path) -> None:
    path, key = tmp_path / "operator.key", new_key()
    save_key(path, key)
    assert load_key(path) == key
    with pytest.raises(WalletError, match="exists already"):
        save_key(path, key)
    path.chmod(0o644)
    with pytest.raises(WalletError, match="chmod 600"):
        load_key(path)


@pytest.mark.parametrize("text", ["", "zz", "00" * 32, "ff" * 32, "12" * 31, "é"])
def test_load_key__refuses_what_is_no_key(tmp_path: Path, text: str) -> None:
    path = tmp_path / "operator.key"
    path.write_text(text)
    path.chmod(0o600)
    with pytest.raises(WalletError):
        load_key(path)


def test_load_key__names_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(WalletError, match=r"absent\.key"):
        load_key(tmp_path / "absent.key")


def test_save_keystore__read_back_and_dear_to_guess(tmp_path: Path) -> None:
    path, key = tmp_path / "wallet.json", new_key()
    save_keystore(path, key, "correct horse")
    assert key.hex() not in path.read_text()
    crypto = json.loads(path.read_text())["crypto"]
    assert (crypto["kdf"], crypto["kdfparams"]["n"], crypto["kdfparams"]["r"]) == ("scrypt", 2**18, 8)
    assert load_keystore(path, "correct horse") == key


def test_check_node_signature__binds_every_field() -> None:
    request = make_registration(DOMAIN)
    message = message_of(DOMAIN, request)
    assert check_node_signature(request.node, message, request.node_signature)
    spoiled = [
        message_of(replace(DOMAIN, chain_id=2), request),
        message_of(replace(DOMAIN, contract=address_of(KEYS[4])), request),
        message_of(DOMAIN, replace(request, run="1" * 64)),
        message_of(DOMAIN, replace(request, wallet=None)),
        message_of(DOMAIN, replace(request, claimed=request.wallet)),
        message_of(DOMAIN, replace(request, wallet=None, claimed=request.wallet)),
        message_of(DOMAIN, replace(request, nonce=2)),
        message_of(DOMAIN, replace(request, node=NODES[1])),
    ]
    assert not any(check_node_signature(request.node, each, request.node_signature) for each in spoiled)
    assert len({*spoiled, message}) == len(spoiled) + 1
    for signature in ("", "zz", request.node_signature[:-2], request.node_signature + "00"):
        assert not check_node_signature(request.node, message, signature)


def test_sign_registration__claims_only_what_it_cannot_sign() -> None:
    linked = make_registration(DOMAIN, claimed=address_of(KEYS[1]))
    assert (linked.claimed, len(linked.wallet_signature), len(linked.node_signature)) == (None, 130, 128)
    claimed = make_registration(DOMAIN, wallet=None, claimed=address_of(KEYS[1]).lower())
    assert (claimed.wallet, claimed.claimed, claimed.wallet_signature) == (None, address_of(KEYS[1]), "")
    with pytest.raises(WalletError):
        make_registration(DOMAIN, wallet=None, claimed="0x1234")


def test_recover_typed_data__agrees_with_the_wallets_library() -> None:
    typed = tally_typed_data(DOMAIN, make_proposal())
    signature = sign_typed_data(typed, KEYS[1])
    assert recover_typed_data(typed, signature) == address_of(KEYS[1])
    library = Account.recover_message(encode_typed_data(full_message=typed), signature=bytes.fromhex(signature))
    assert library == address_of(KEYS[1])


@pytest.mark.parametrize("signature", ["", "zz", "00" * 65, "ff" * 65, "00" * 64 + "1b", "11" * 64])
def test_recover_typed_data__none_for_a_malformed_signature(signature: str) -> None:
    assert recover_typed_data(tally_typed_data(DOMAIN, make_proposal()), signature) is None


def test_node_keys__are_those_of_the_node_ids() -> None:
    assert [public_key_from_node(node) for node in NODES] == [bytes(key.verify_key) for key in NODE_KEYS]
