"""Which node's submissions are judged next when answers take too long to score."""

from __future__ import annotations

from dht.memory import FakeClock
from roles.rules import Reason
from roles.validator.pacing import FIRST_MS, LONGEST_MS, OF_NODE, Pacing
from roles.verification import Finding

SLOW, GOOD = Finding("soft", Reason.SCORING_TIMEOUT), Finding("accept", Reason.ACCEPTED)
BAD = Finding("soft", Reason.WRONG_REWARD)


def make_pacing() -> tuple[Pacing, FakeClock]:
    clock = FakeClock(1_000_000)
    return Pacing(clock), clock


def test_begin__one_node_has_few_places_and_others_have_theirs() -> None:
    pacing, _ = make_pacing()
    assert [pacing.begin("a") for _ in range(OF_NODE + 2)] == [True] * OF_NODE + [False] * 2
    assert pacing.begin("b")
    pacing.end("a", None)
    assert pacing.begin("a")


def test_begin__of_a_slow_node_one_at_a_time_later_and_later() -> None:
    pacing, clock = make_pacing()
    pauses = list[int]()
    for _ in range(12):
        assert pacing.begin("a")
        assert not pauses or not pacing.begin("a")
        pacing.end("a", SLOW)
        waited = 0
        while not pacing.begin("a"):
            clock.advance(1)
            waited += 1
        pacing.end("a", BAD)  # cheap to hand in, and changes nothing
        pauses.append(1000 * waited)
    assert pauses[:3] == [FIRST_MS, 2 * FIRST_MS, 4 * FIRST_MS]
    assert pauses[-1] == LONGEST_MS


def test_end__what_is_accepted_takes_a_slow_one_back() -> None:
    pacing, clock = make_pacing()
    pacing.begin("a")
    pacing.end("a", SLOW)
    clock.advance(FIRST_MS // 1000)
    pacing.begin("a")
    pacing.end("a", GOOD)
    assert [pacing.begin("a") for _ in range(OF_NODE)] == [True] * OF_NODE
