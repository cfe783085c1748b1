"""Converting a scorer's result to a score."""

from __future__ import annotations

import pytest

from roles.sandbox.function import ConfinedFunction
from roles.sandbox.program import why_unavailable
from roles.tasks.answers import ask_scorer

pytestmark = pytest.mark.skipif(why_unavailable() is not None, reason=str(why_unavailable()))


@pytest.mark.parametrize("what", ["huge number", "no number", "raise", "echo", "answer without bottom"])
def test_ask_scorer__number_that_is_none(what: str) -> None:
    scorer = ConfinedFunction("tests.unit.roles.sandbox.hostile_scorer:act", seconds=30.0)
    assert ask_scorer(scorer, what) == 0.0
    scorer.close()
