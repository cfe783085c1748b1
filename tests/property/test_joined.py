"""For any measurements, a score is a rate and evidence stays bounded; more deviation never makes a
submission look more honest."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from roles.toploc.joined import Calibration, Component, score
from roles.toploc.joined.score import MOST_EVIDENCE
from roles.toploc.observation import Observation
from roles.toploc.verify import NOTHING_AGREES, ProofStatistics

CHUNK = 4
spreads = st.floats(1e-6, 1e9)
levels = st.one_of(st.just(0.0), st.floats(1e-9, 1e4))
mantissas = st.one_of(st.just(NOTHING_AGREES), st.floats(0, 4095))
chunks = st.builds(ProofStatistics, st.integers(0, 4096), mantissas, mantissas)
margins = st.one_of(st.floats(min_value=0, allow_infinity=True), st.just(math.nan))


def components(classes: int) -> st.SearchStrategy[Component]:
    """Any noise that a spec may pin."""
    of_classes = st.lists(levels, min_size=classes, max_size=classes).map(tuple)
    return st.builds(Component, of_classes, spreads, st.floats(0, 1e9), st.floats(0, 1e9))


calibrations = st.builds(Calibration, components(4), components(4), components(1))


@st.composite
def observations(draw: st.DrawFn) -> Observation:
    """Any measurements of a few completions, empty ones too."""
    parts = draw(st.lists(st.lists(margins, max_size=9), max_size=4))
    proofs = tuple(tuple(draw(chunks) for _ in range(-(-len(part) // CHUNK))) for part in parts)
    return Observation(proofs, tuple(np.array(part, dtype=np.float64) for part in parts), CHUNK)


@given(observations(), calibrations)
def test_score__always_a_rate_and_bounded_evidence(observation: Observation, calibration: Calibration) -> None:
    found = score(observation, calibration)
    assert 0 < found.p <= 1
    assert len(found.evidence) == 9
    assert all(-math.log(2) - 1e-9 <= each <= MOST_EVIDENCE for each in found.evidence)
    assert str(found)


@given(st.integers(0, 60), st.integers(0, 60), calibrations)
def test_score__falls_with_deviation(low: int, more: int, calibration: Calibration) -> None:
    def rate(mismatches: int) -> float:
        chunk = ProofStatistics(mismatches, 1.0, 1.0)
        return score(Observation(((chunk,),), (np.zeros(CHUNK),), CHUNK), calibration).p

    assert rate(low + more) <= rate(low) * (1 + 1e-6)
