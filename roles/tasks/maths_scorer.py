"""Scores mathematics inside the sandbox. math-verify's own time limits are not used: they are signals, ours is a kill.

math-verify has sympy evaluate what looks like arithmetic, so nothing beyond arithmetic is let through.
"""

from __future__ import annotations

from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse, verify
from sympy.core.random import seed

from roles.sandbox.expressions import only_expressions

FORMS = (LatexExtractionConfig(boxed_match_priority=0), ExprExtractionConfig())


def score(answer: str, completion: str) -> float:
    """1.0 iff the last final answer of `completion` equals `answer` (LaTeX or plain)."""
    seed(0)  # sympy tests expressions at random points, which must be the same on every machine
    with only_expressions():
        right = parse(f"\\boxed{{{answer.strip().strip('$')}}}", FORMS, parsing_timeout=None)
        # math-verify joins several boxes into one list, but people mean the last
        given = parse(completion[max(0, completion.rfind(r"\boxed")) :], FORMS, parsing_timeout=None)
        return float(bool(right and given) and verify(right, given, timeout_seconds=None))
