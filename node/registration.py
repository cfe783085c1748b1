"""Registers a node on the ledger: linked if the wallet has signed, otherwise unlinked with an address it claims.

A node with an operator key pays for itself; others ask a sponsoring relay. The wallet's key need not be here: the data
to sign can be printed, signed elsewhere and brought back.
"""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import structlog

from dht.errors import TransportError
from dht.identity import NodeKey
from ledger.client import LedgerClient
from ledger.errors import WalletError
from ledger.keystore import is_encrypted, load_key, stated_address
from ledger.records import Registration, RegistrationRequest, RotationRequest
from ledger.wallet import (
    address_of,
    canonical_signature,
    checked_address,
    recover_typed_data,
    registration_message,
    registration_typed_data,
    sign_registration,
)
from node.config import NodeConfig
from node.errors import ConfigError, UsageError
from node.running import patiently
from node.secrets import read_secret
from roles.shardcast.client import RelayClient
from roles.spec import RunSpec

log = structlog.get_logger()

_ADDRESS = re.compile(r"^0x[0-9a-fA-F]{40}$")
CHECK_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Wallet:
    """Whom to credit: a key (linked), an address (claimed), or nobody."""

    key: bytes | None = None
    address: str | None = None


def given_address(text: str) -> str:
    """The EIP-55 form of a typed address. Raises UsageError."""
    try:
        return checked_address(text)
    except WalletError as error:
        raise UsageError(str(error)) from error


def named_address(text: str) -> str:
    """The address of a wallet named by its address or its file. An encrypted file is not decrypted: its stated
    address is good enough to look a wallet up, but not to send it anything. Raises UsageError, or WalletError
    for a file that is not a key."""
    if _ADDRESS.match(text):
        return given_address(text)
    path = _wallet_file(text)
    address = stated_address(path) if is_encrypted(path) else address_of(load_key(path))
    if address is None:
        raise UsageError(f"{path} does not say which address it holds the key of: name the address itself")
    return address


def _wallet_file(text: str) -> Path:
    path = Path(text).expanduser()
    if not path.is_file():
        raise UsageError(
            f"the wallet {text[:80]!r} is neither an address (0x and 40 hex digits) nor a file that exists"
        )
    return path


def read_wallet(config: NodeConfig) -> Wallet:
    """The wallet named in the settings. Raises UsageError, ConfigError or WalletError saying what is wrong with it."""
    text = config.wallet
    if not text:
        return Wallet()
    if _ADDRESS.match(text):
        return Wallet(address=given_address(text))
    key = read_secret(_wallet_file(text), config.wallet_password_file)
    return Wallet(key=key, address=address_of(key))


def needs_registration(held: Registration | None, wallet: Wallet) -> bool:
    """Whether the registration in force differs from the wallet. Without a wallet, any registration will do."""
    if held is None:
        return True
    if wallet.key is not None:
        return held.wallet != wallet.address
    return wallet.address is not None and wallet.address not in (held.wallet, held.claimed)


class Registrar:
    """Brings one node's registration in line with its wallet."""

    def __init__(
        self, *, spec: RunSpec, role: str, key: NodeKey, wallet: Wallet, ledger: LedgerClient, relays: RelayClient
    ) -> None:
        self._spec, self._role, self._key, self._wallet = spec, role, key, wallet
        self._ledger, self._relays = ledger, relays

    async def run(self) -> None:
        """Register if needed, with patience; returns when the ledger shows it. Not needed for a node that the run names
        as validator or trainer, in its spec or later (`node.starting.check_place`)."""
        operators = {item.node for item in (*self._spec.validators, *self._spec.trainers)}
        if self._role in ("trainer", "validator") or self._key.node in operators:
            return
        await patiently(self._attempt, event="registration.pending", hint="the node could not be registered")

    async def _attempt(self) -> None:
        held = await self._ledger.registration(self._key.node)
        if not needs_registration(held, self._wallet):
            return
        request = sign_registration(
            self._ledger.domain,
            run=self._spec.run_id,
            node=self._key.node,
            nonce=held.nonce + 1 if held else 1,
            sign_node=self._key.sign,
            wallet_key=self._wallet.key,
            claimed=self._wallet.address,
        )
        await send_request(request, ledger=self._ledger, relays=self._relays)
        log.info("node.registered", wallet=request.wallet or request.claimed or "none", linked=bool(request.wallet))


@dataclass(frozen=True, slots=True)
class LinkOffer:
    """A link that waits for its wallet: the EIP-712 data that the wallet signs, and the rest of the registration."""

    run: str
    node: str
    wallet: str
    nonce: int
    message: bytes
    typed_data: dict[str, Any]

    def accept(self, key: NodeKey, signature: str) -> RegistrationRequest:
        """The registration, signed by both. Raises WalletError when the signature is
        not the wallet's over this data."""
        wallet_signature = checked_signature(self.typed_data, signature, self.wallet)
        node_signature = key.sign(self.message).hex()
        return RegistrationRequest(self.run, self.node, self.wallet, None, self.nonce, wallet_signature, node_signature)


async def offer_link(ledger: LedgerClient, *, run: str, node: str, wallet: str) -> LinkOffer:
    """What the wallet must sign to be linked to the node, following the registration that the ledger shows now."""
    nonce = await next_nonce(ledger, node)
    message = registration_message(ledger.domain, run=run, node=node, wallet=wallet, claimed=None, nonce=nonce)
    typed_data = registration_typed_data(ledger.domain, run=run, node=node, wallet=wallet, nonce=nonce)
    return LinkOffer(run, node, wallet, nonce, message, typed_data)


async def next_nonce(ledger: LedgerClient, node: str) -> int:
    """The nonce of a node's next registration or rotation."""
    held = await ledger.registration(node)
    return held.nonce + 1 if held else 1


def checked_signature(typed_data: dict[str, Any], signature: str, wallet: str) -> str:
    """A signature in the one form that the contract accepts. Raises WalletError unless it is
    the wallet's over this data."""
    plain = canonical_signature(signature)
    signer = recover_typed_data(typed_data, plain)
    if signer != wallet:
        raise WalletError(
            f"this signature is not {wallet}'s over what is to be signed now: print it again and sign that (a "
            f"registration sent meanwhile changes its nonce){f'; it looks like one of {signer}' if signer else ''}"
        )
    return plain


async def send_request(
    request: RegistrationRequest | RotationRequest, *, ledger: LedgerClient, relays: RelayClient | None
) -> None:
    """Put a request on the ledger, paying for gas ourselves or through a sponsor. Returns when the ledger shows it.

    Raises LedgerError, TransportError, or ConfigError when there is nobody to pay.
    """
    if ledger.operator is not None:
        if isinstance(request, RotationRequest):
            await ledger.rotate(request)
        else:
            await ledger.register(request)
    elif relays is not None:
        await relays.register(request)
    else:
        raise ConfigError("nobody pays the gas: name a key by --operator-key, or a run with relays by --join")
    await _seen(request, ledger)


async def _seen(request: RegistrationRequest | RotationRequest, ledger: LedgerClient) -> None:
    """Wait until the ledger shows the request. A sponsor's word is not enough."""
    try:
        async with asyncio.timeout(CHECK_SECONDS):
            while not await _is_shown(request, ledger):  # noqa: ASYNC110 - nobody tells us
                await asyncio.sleep(0.2)
    except TimeoutError as error:
        raise TransportError("the sponsor said yes but the ledger does not show it") from error


async def _is_shown(request: RegistrationRequest | RotationRequest, ledger: LedgerClient) -> bool:
    if isinstance(request, RotationRequest):
        held = await ledger.registration(request.new_node)
        return held is not None and request.old_node in held.previous
    held = await ledger.registration(request.node)
    return held is not None and held.nonce >= request.nonce
