"""Sponsored registrations and rotations: a relay pays the gas of newcomers that did some proof of
work, by an hourly budget."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable
from typing import Annotated

from pydantic import Field, TypeAdapter, ValidationError

from dht.encoding import Digest, Message, Natural
from dht.errors import NodeError
from ledger.errors import LedgerError, LedgerRejected, WalletError
from ledger.records import RegistrationRequest, RotationRequest
from roles.messages import NodeName
from roles.relay.refusal import Refusal
from roles.shardcast.work import is_work_done

Sponsor = Callable[[RegistrationRequest | RotationRequest], Awaitable[object]]
"""Sends the registration or rotation to the ledger and returns something JSON-serialisable,
e.g. the transaction's hash."""

MAX_FORM = 8 * 1024
HOUR = 3600.0
PATIENCE = 120.0
REMEMBERED = 4096

EthAddress = Annotated[str, Field(pattern=r"^0x[0-9a-fA-F]{40}$")]
Signature = Annotated[str, Field(max_length=260, pattern=r"^(0x)?[0-9a-fA-F]*$")]


class RegistrationForm(Message):
    """The JSON body of POST /register."""

    run: Digest
    node: NodeName
    wallet: EthAddress | None = None
    claimed: EthAddress | None = None
    nonce: Natural
    wallet_signature: Signature = ""
    node_signature: Signature

    def request(self) -> RegistrationRequest:
        """The form as the ledger's request."""
        return RegistrationRequest(**self.model_dump())


class RotationForm(Message):
    """The other JSON body of POST /register: replaces one node key by another."""

    run: Digest
    old_node: NodeName
    new_node: NodeName
    wallet: EthAddress | None = None
    nonce: Natural
    wallet_signature: Signature = ""
    old_node_signature: Signature = ""
    new_node_signature: Signature

    def request(self) -> RotationRequest:
        """The form as the ledger's request."""
        return RotationRequest(**self.model_dump())

    @property
    def node(self) -> str:
        """The node that must show proof of work: the key that is already registered."""
        return self.old_node


Form = RegistrationForm | RotationForm
_FORMS: TypeAdapter[Form] = TypeAdapter(Form)


class SponsorDesk:
    """Judges and sponsors forms. Sending the same form again gets the same answer and is paid for only once."""

    def __init__(
        self,
        sponsor: Sponsor | None,
        *,
        run: str,
        per_hour: int,
        work_bits: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._sponsor, self._run, self._per_hour, self._bits, self._clock = sponsor, run, per_hour, work_bits, clock
        self._spent: deque[float] = deque()
        self._answers: OrderedDict[Form, object] = OrderedDict()
        self._turn = asyncio.Lock()

    async def take(self, body: bytes, work: str) -> object:
        """Judge a form and sponsor it. Raises Refusal."""
        if self._sponsor is None:
            raise Refusal(403, "not_a_sponsor", "this relay sponsors no registrations; ask another")
        form = self._parse(body)
        counter = int(work) if work.isascii() and work.isdigit() and len(work) < 20 else -1
        if not is_work_done(form.node, form.nonce, counter, bits=self._bits):
            raise Refusal(403, "work_missing", f"the X-Work header must give {self._bits} leading zero bits")
        if form not in self._answers:
            async with self._turn:
                if form not in self._answers:  # nor answered while we waited
                    self._answers[form] = await self._pay(self._sponsor, form)
                    if len(self._answers) > REMEMBERED:
                        self._answers.popitem(last=False)
        return self._answers[form]

    def _parse(self, body: bytes) -> Form:
        try:
            form = _FORMS.validate_json(body)
        except (ValidationError, ValueError, RecursionError) as error:
            raise Refusal(400, "malformed", "the body is not a registration request") from error
        if form.run != self._run:
            raise Refusal(400, "other_run", "the registration is for another run")
        return form

    async def _pay(self, sponsor: Sponsor, form: Form) -> object:
        now = self._clock()
        while self._spent and self._spent[0] <= now - HOUR:
            self._spent.popleft()
        if len(self._spent) >= self._per_hour:
            raise Refusal(429, "budget_spent", "this relay has spent its budget for this hour; ask another")
        self._spent.append(now)
        try:
            async with asyncio.timeout(PATIENCE):
                return await sponsor(form.request())
        except TimeoutError as error:
            raise Refusal(504, "ledger_slow", "the ledger did not answer in time") from error
        except (NodeError, LedgerError) as error:
            if _was_free(error):
                self._spent.pop()
            raise Refusal(422, "refused", str(error)[:300]) from error


def _was_free(error: Exception) -> bool:
    """Whether the failure cost no gas, so that it need not count against the hourly budget."""
    return isinstance(error, WalletError) or (isinstance(error, LedgerRejected) and not error.was_paid)
