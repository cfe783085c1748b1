"""A calibration as stored in the run spec, and back: whole numbers, rounded in the cautious direction."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from roles.spec import JoinedSpec, NoiseSpec
from roles.toploc.joined.calibration import NAMES, Calibration, Component

LEVEL = 10**9
SPREAD = 10**6


def calibration_of(joined: JoinedSpec) -> Calibration:
    """The calibration that the spec pins."""
    exponents, mantissas, margins = (_component(getattr(joined, name)) for name in NAMES)
    return Calibration(exponents, mantissas, margins)


def pin(calibration: Calibration) -> Mapping[str, Mapping[str, Any]]:
    """The tables `exponents`, `mantissas` and `margins` of `checks.joined`."""
    return {
        name: {
            "levels": [math.ceil(level * LEVEL) for level in component.levels],
            "unit": math.ceil(component.unit * SPREAD),
            "completion": math.ceil(component.completion * SPREAD),
            "submission": math.ceil(component.submission * SPREAD),
        }
        for name, component in zip(NAMES, calibration.components, strict=True)
    }


def _component(noise: NoiseSpec) -> Component:
    return Component(
        tuple(level / LEVEL for level in noise.levels),
        noise.unit / SPREAD,
        noise.completion / SPREAD,
        noise.submission / SPREAD,
    )
