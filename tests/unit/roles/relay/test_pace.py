"""A bandwidth limit applies to all bulk transfers, whatever path they take."""

from __future__ import annotations

import time
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from roles.relay import Certificate
from roles.shardcast.manifest import manifest_digest
from roles.shardcast.pace import SMALLEST_PIECE, Line, Pace, line_of
from roles.shardcast.relay_http import make_http
from tests.unit.roles.shardcast.line import is_same
from tests.unit.roles.shardcast.network import TRAINER, Network, make_checkpoint, make_envelope

SIZE = 300_000
FAST = 1e12


class Counted:
    """A pace too fast to slow anything down, with its clock stopped, so that its
    count is the number of bytes passed."""

    def __init__(self) -> None:
        self.pace = Pace(FAST, clock=lambda: 0.0)

    @property
    def passed(self) -> int:
        return round(self.pace.reserve(0) * FAST)


def test_reserve__transfers_take_turns_and_time_passed_is_free() -> None:
    now = 10.0
    pace = Pace(1000.0, clock=lambda: now)
    assert pace.reserve(500) == pytest.approx(0.5)
    assert pace.reserve(1000) == pytest.approx(1.5), "behind the first"
    now = 20.0
    assert pace.reserve(100) == pytest.approx(0.1), "an idle line saves nothing up"


def test_reserve__without_a_limit_nobody_waits() -> None:
    assert Pace().reserve(2**40) == 0.0


@pytest.mark.parametrize(("mbit", "piece"), [(4, SMALLEST_PIECE), (100, 195_312), (100_000, 2**21)])
def test_piece__a_sixty_fourth_of_a_second_within_reason(mbit: int, piece: int) -> None:
    assert line_of(mbit, 0).up.piece == piece


@pytest.mark.parametrize("is_encrypted", [False, True])
@pytest.mark.parametrize("bulk", [1, 2**30], ids=["by lanes", "by the loop"])
async def test_checkpoint__every_byte_of_it_counts_at_each_end__nat_08(
    tmp_path: Path, certificate: Certificate, bulk: int, is_encrypted: bool
) -> None:
    source = make_checkpoint(tmp_path / "source", size=SIZE)
    envelope = make_envelope(source)
    up, down, relay_up, relay_down = (Counted() for _ in range(4))
    served = {"line": Line(relay_up.pace, relay_down.pace), "certificate": certificate if is_encrypted else None}
    async with AsyncExitStack() as stack:
        line = Line(up.pace, down.pace)
        http = await stack.enter_async_context(make_http(ca=certificate.chain, line=line))
        network = Network(tmp_path, http, stack, served=served, bulk=bulk)
        await network.add_relay()
        await network.client(TRAINER).put_checkpoint(envelope, source)
        assert SIZE <= up.passed == pytest.approx(relay_down.passed, rel=0.05)
        fetched = await network.client().fetch_checkpoint(manifest_digest(envelope), tmp_path / "into")
    assert is_same(fetched, source)
    assert SIZE <= down.passed == pytest.approx(relay_up.passed, rel=0.05)


@pytest.mark.parametrize("bulk", [1, 2**30], ids=["by lanes", "by the loop"])
async def test_fetch__takes_the_time_its_limit_sets__nat_08(tmp_path: Path, bulk: int) -> None:
    source = make_checkpoint(tmp_path / "source", size=SIZE)
    envelope = make_envelope(source)
    async with AsyncExitStack() as stack:
        http = await stack.enter_async_context(make_http(line=line_of(0, 8)))
        network = Network(tmp_path, http, stack, bulk=bulk)
        await network.add_relay()
        await network.client(TRAINER).put_checkpoint(envelope, source)
        began = time.monotonic()
        fetched = await network.client().fetch_checkpoint(manifest_digest(envelope), tmp_path / "into")
        assert time.monotonic() - began >= SIZE / 1e6, "a million bytes a second"
    assert is_same(fetched, source)
