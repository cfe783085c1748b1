"""Registers a node on the ledger: linked when the wallet's key is here, else unlinked with an address it claims.

Who has an operator key pays itself; everybody else asks a sponsoring relay.
"""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass
from pathlib import Path

import structlog

from dht.errors import TransportError
from dht.identity import NodeKey
from ledger.client import LedgerClient
from ledger.records import Registration
from ledger.wallet import address_of, checked_address, sign_registration
from node.config import NodeConfig
from node.errors import ConfigError
from node.running import patiently
from node.secrets import read_secret
from roles.shardcast.client import RelayClient
from roles.spec import RunSpec

log = structlog.get_logger()

_ADDRESS = re.compile(r"^0x[0-9a-fA-F]{40}$")
CHECK_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Wallet:
    """Whom to credit: a key (linked), an address (claimed), or nobody."""

    key: bytes | None = None
    address: str | None = None


def read_wallet(config: NodeConfig) -> Wallet:
    """The wallet the settings name. Raises ConfigError or WalletError with what is wrong about it."""
    text = config.wallet
    if not text:
        return Wallet()
    if _ADDRESS.match(text):
        return Wallet(address=checked_address(text))
    path = Path(text).expanduser()
    if not path.is_file():
        raise ConfigError(f"the wallet {text[:80]!r} is neither an address (0x and 40 hex digits) nor a key file")
    key = read_secret(path, config.wallet_password_file)
    return Wallet(key=key, address=address_of(key))


def needs_registration(held: Registration | None, wallet: Wallet) -> bool:
    """Whether the registration in force says something else than the wallet does now. No wallet: any will do."""
    if held is None:
        return True
    if wallet.key is not None:
        return held.wallet != wallet.address
    return wallet.address is not None and wallet.address not in (held.wallet, held.claimed)


class Registrar:
    """Brings one node's registration in line with its wallet."""

    def __init__(
        self, *, spec: RunSpec, key: NodeKey, wallet: Wallet, ledger: LedgerClient, relays: RelayClient
    ) -> None:
        self._spec, self._key, self._wallet = spec, key, wallet
        self._ledger, self._relays = ledger, relays

    async def run(self) -> None:
        """Register if needed, with patience; returns when the ledger shows it."""
        operators = {item.node for item in (*self._spec.validators, *self._spec.trainers)}
        if self._key.node in operators:
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
        if self._ledger.operator is not None:
            await self._ledger.register(request)
        else:
            await self._relays.register(request)
        await self._seen(request.nonce)
        log.info("node.registered", wallet=request.wallet or request.claimed or "none", linked=bool(request.wallet))

    async def _seen(self, nonce: int) -> None:
        """A sponsor's word is not enough: wait until the ledger shows it."""
        try:
            async with asyncio.timeout(CHECK_SECONDS):
                while (held := await self._ledger.registration(self._key.node)) is None or held.nonce < nonce:  # noqa: ASYNC110 - nobody tells us
                    await asyncio.sleep(0.2)
        except TimeoutError as error:
            raise TransportError("the sponsor said yes but the ledger does not show the registration") from error
