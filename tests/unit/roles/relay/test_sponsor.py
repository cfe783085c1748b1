"""Sponsored registrations."""

from __future__ import annotations

import asyncio
import json
from dataclasses import asdict
from pathlib import Path

import pytest

from dht.errors import PeerError, TransportError
from dht.identity import NodeKey
from ledger.errors import LedgerRejected, LedgerUnavailable, WalletError
from ledger.records import RegistrationRequest, RotationRequest
from roles.relay.refusal import Refusal
from roles.relay.sponsor import SponsorDesk
from roles.shardcast.work import compute_work
from tests.unit.roles.shardcast.network import RUN, WORKER, running_network

BITS = 4
OTHER = NodeKey(bytes([7]) * 32)


def make_request(**changes: object) -> RegistrationRequest:
    plain: dict[str, object] = {
        "run": RUN,
        "node": WORKER.node,
        "wallet": None,
        "claimed": "0x" + "ab" * 20,
        "nonce": 1,
        "wallet_signature": "",
        "node_signature": "cd" * 64,
    }
    return RegistrationRequest(**(plain | changes))  # type: ignore[arg-type]


class Payer:
    """A sponsor that records its calls, and fails on request."""

    def __init__(self, error: Exception | None = None) -> None:
        self.paid: list[RegistrationRequest | RotationRequest] = []
        self.error = error

    async def __call__(self, request: RegistrationRequest | RotationRequest) -> object:
        if self.error:
            raise self.error
        self.paid.append(request)
        return "0xhash"


def make_desk(payer: Payer, *, per_hour: int = 60, clock: list[float] | None = None) -> SponsorDesk:
    now = clock or [0.0]
    return SponsorDesk(payer, run=RUN, per_hour=per_hour, work_bits=BITS, clock=lambda: now[0])


async def take(desk: SponsorDesk, request: RegistrationRequest) -> object:
    work = compute_work(request.node, request.nonce, bits=BITS)
    return await desk.take(json.dumps(asdict(request)).encode(), str(work))


async def test_take__pays_once_and_answers_twice() -> None:
    payer = Payer()
    desk = make_desk(payer)
    assert await take(desk, make_request()) == await take(desk, make_request()) == "0xhash"
    assert payer.paid == [make_request()]


async def test_take__a_rotation_is_sponsored_too__key_01() -> None:  # KEY-01
    payer = Payer()
    rotation = RotationRequest(RUN, WORKER.node, OTHER.node, None, 2, "", "ab" * 64, "cd" * 64)
    work = compute_work(WORKER.node, 2, bits=BITS)
    answer = await make_desk(payer).take(json.dumps(asdict(rotation)).encode(), str(work))
    assert (answer, payer.paid) == ("0xhash", [rotation])


async def test_take__budget_of_an_hour() -> None:
    payer, clock = Payer(), [0.0]
    desk = make_desk(payer, per_hour=2, clock=clock)
    for nonce in (1, 2):
        await take(desk, make_request(nonce=nonce))
    with pytest.raises(Refusal) as refused:
        await take(desk, make_request(nonce=3))
    assert refused.value.code == "budget_spent"
    clock[0] = 3601.0
    await take(desk, make_request(nonce=3))
    assert len(payer.paid) == 3


@pytest.mark.parametrize(
    ("error", "left"),
    [
        (LedgerRejected("node signature"), True),
        (WalletError("not a node id"), True),
        (LedgerRejected("nonce", was_paid=True), False),
        (LedgerUnavailable("no answer"), False),  # it may have been sent
    ],
)
async def test_take__only_what_may_have_cost_gas_uses_up_the_budget(error: Exception, left: bool) -> None:
    payer = Payer(error)
    desk = make_desk(payer, per_hour=1)
    with pytest.raises(Refusal):
        await take(desk, make_request(nonce=1))
    payer.error = None
    if left:
        assert await take(desk, make_request(nonce=2)) == "0xhash"
    else:
        with pytest.raises(Refusal, match="budget"):
            await take(desk, make_request(nonce=2))


async def test_take__what_was_paid_is_answered_while_another_form_waits_for_the_ledger() -> None:
    asked, go_on = asyncio.Event(), asyncio.Event()

    async def pay(request: RegistrationRequest | RotationRequest) -> object:
        if request.nonce == 2:
            asked.set()
            await go_on.wait()
        return "0xhash"

    desk = SponsorDesk(pay, run=RUN, per_hour=60, work_bits=BITS)
    await take(desk, make_request(nonce=1))
    async with asyncio.timeout(10), asyncio.TaskGroup() as group:
        group.create_task(take(desk, make_request(nonce=2)))
        await asked.wait()
        assert await take(desk, make_request(nonce=1)) == "0xhash"
        go_on.set()


@pytest.mark.parametrize("work", ["", "-1", "x", "9" * 30, "²"])
async def test_take__reject_without_work(work: str) -> None:
    payer = Payer()
    with pytest.raises(Refusal) as refused:
        await make_desk(payer).take(json.dumps(asdict(make_request())).encode(), work)
    assert (refused.value.code, payer.paid) == ("work_missing", [])


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"[" * 5000, b'{"run":1}', b"\xff"])
async def test_take__reject_malformed(body: bytes) -> None:
    with pytest.raises(Refusal) as refused:
        await make_desk(Payer()).take(body, "0")
    assert refused.value.code == "malformed"


async def test_take__reject_other_run() -> None:
    with pytest.raises(Refusal) as refused:
        await take(make_desk(Payer()), make_request(run="cd" * 32))
    assert refused.value.code == "other_run"


@pytest.mark.parametrize("error", [LedgerRejected("nonce"), PeerError("node signature fails")])
async def test_take__ledgers_refusal_is_an_answer(error: Exception) -> None:
    with pytest.raises(Refusal) as refused:
        await take(make_desk(Payer(error)), make_request())
    assert refused.value.status == 422


async def test_register__through_the_relay_that_sponsors(tmp_path: Path) -> None:
    payer = Payer()
    async with running_network(tmp_path, relays=1) as network:
        with pytest.raises(TransportError, match="sponsors no registrations"):
            await network.client().register(make_request())
        await network.add_relay(sponsor=payer)
        answer = await network.client().register(make_request())
    assert answer == {"sponsored": True, "result": "0xhash"}
    assert payer.paid == [make_request()]
