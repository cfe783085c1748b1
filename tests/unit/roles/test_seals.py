"""Seals: what they bind, and whose verdict they credit."""

from __future__ import annotations

from typing import Any

import pytest

from roles.messages import Verdict
from roles.seals import earning_validators, new_salt, seal_of, seen_seals
from tests.builders import VALIDATORS, make_submission, make_verdict, make_world

WORLD = make_world()
SUBMISSION, OTHER = make_submission(WORLD), make_submission(WORLD, index=1)
FIRST, SECOND, THIRD = (key.node for key in VALIDATORS)


def sealed(**changes: Any) -> Verdict:
    """An acceptance with a salt."""
    return make_verdict(SUBMISSION, **{"salt": "0f" * 16, **changes})


@pytest.mark.parametrize("changes", [{"outcome": "fault", "reason": 602}, {"reason": 602}, {"salt": "0e" * 16}])
def test_seal_of__opens_to_one_verdict_only(changes: dict[str, Any]) -> None:
    assert seal_of(sealed(**changes), FIRST) != seal_of(sealed(), FIRST)


def test_seal_of__is_about_one_submission() -> None:
    assert seal_of(make_verdict(OTHER, salt="0f" * 16), FIRST) != seal_of(sealed(), FIRST)


def test_seal_of__is_one_validators_own() -> None:
    assert seal_of(sealed(), FIRST) != seal_of(sealed(), SECOND)


def test_seal_of__does_not_depend_on_what_was_seen() -> None:
    assert seal_of(sealed(seen=("ab" * 16,)), FIRST) == seal_of(sealed(), FIRST)


def test_new_salt__differs_each_time() -> None:
    assert len({new_salt() for _ in range(50)}) == 50


def test_earning_validators__not_sealed__everybody() -> None:
    assert earning_validators({FIRST: make_verdict(SUBMISSION)}, sealed=False) == {FIRST}


def test_earning_validators__listed_by_another() -> None:
    seal = seal_of(sealed(), FIRST)
    verdicts = {FIRST: sealed(seen=(seal[:32],)), SECOND: sealed(seen=(seal[:32],)), THIRD: make_verdict(SUBMISSION)}
    assert earning_validators(verdicts, sealed=True) == {FIRST}


def test_earning_validators__opened_otherwise_than_sealed() -> None:
    """The seal that others saw was for a fault; the acceptance came once theirs could be read."""
    seal = seal_of(sealed(outcome="fault", reason=602), FIRST)
    assert not earning_validators({FIRST: sealed(), SECOND: sealed(seen=(seal[:32],))}, sealed=True)


def test_seen_seals__others_only_by_their_first_half() -> None:
    seals = {FIRST: "aa" * 32, SECOND: "bb" * 32, THIRD: "cc" * 32}
    assert seen_seals(seals, FIRST) == ("bb" * 16, "cc" * 16)


def test_seen_seals__of_more_than_fit_everybody_is_listed_by_somebody() -> None:
    seals = {f"validator-{number}": f"{number:064x}"[::-1] for number in range(64)}
    lists = [seen_seals(seals, name) for name in seals]
    assert all(len(each) == 32 for each in lists)
    assert {half for each in lists for half in each} == {seal[:32] for seal in seals.values()}
