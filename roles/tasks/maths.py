"""Mathematics: compares the final answer in a text with the right one, by math-verify (INTELLECT-2, section 3.1).

The answer is the last `\\boxed{..}` after `</think>`, or what math-verify takes for one. sympy can be made to compute
for ever, and caches what it has computed, so each answer gets a confined process and a time limit of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from roles.sandbox.function import ConfinedFunction
from roles.tasks.answers import answer_part, ask_scorer
from roles.tasks.problems import ProblemList, digest_of, load_problems, texts_of
from roles.tasks.task import TaskError

NAME = "maths"
SCORER_VERSION = "maths/1"
LIBRARIES = ("math-verify", "latex2sympy2-extended", "sympy")
"""Packages whose versions are part of the digest: other versions may judge an answer differently."""
SECONDS = 10.0
FORMS = r"""
5 | -12 | 0.5 | 1/2 | \frac{1}{2} | \frac{a+b}{2} | 3\sqrt{2} | \sqrt{x} | x^2+1 | 2x(x-1) | 2^{10} | e^{i\pi} | \frac{\pi}{3}
\sin(2x) | \log_2 8 | (1,2] | (-\infty,3) | \{1,2,3\} | x=3 | x>3 | 50\% | 10\text{ cm} | 1,234 | n! | \binom{5}{2} | |x|
\begin{pmatrix}1&2\\3&4\end{pmatrix} | \text{(A)} | 3+4i | (1,2) | \infty | a \cup b
"""
_forms = [form.strip() for form in FORMS.replace("\n", " | ").split(" | ") if form]
WARM = [(right, f"so it is \\boxed{{{said}}}.") for said in _forms for right in (said, _forms[0])]
"""Typical answers, right and wrong, so that libraries and their parser are loaded and warmed up once."""


@dataclass(frozen=True, slots=True)
class Maths(ProblemList):
    """Problems with a final answer; see `Task` for the contract of each member."""

    scorer: ConfinedFunction
    name: str = NAME
    is_repeatable: bool = True

    def score(self, index: int, completion: str) -> float:
        """1.0 iff the final answer equals the right one. Raises Undecided when sympy runs out of time."""
        return ask_scorer(self.scorer, self.answer(index), answer_part(completion))


def load_maths(parameters: Mapping[str, int | str], folder: Path | None) -> Maths:
    """Build the task. Parameters: `data`, the digest of a data set with `prompt` and `answer`; `limit`."""
    problems = load_problems(parameters, folder)
    try:
        versions = [f"{name} {metadata.version(name)}" for name in LIBRARIES]
    except metadata.PackageNotFoundError as error:
        raise TaskError(f"task {NAME} needs the package {error.name}: pip install 'intellect-node[tasks]'") from error
    digest = digest_of(SCORER_VERSION, *versions, *texts_of(problems))
    return Maths(problems, digest, ConfinedFunction("roles.tasks.maths_scorer:score", seconds=SECONDS, warm=WARM))
