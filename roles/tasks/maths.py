"""Mathematics: the final answer of a text against the right one, by math-verify (INTELLECT-2, section 3.1).

The answer is the last `\\boxed{..}` of what follows `</think>`, or what math-verify takes for one. sympy can be made to
compute for ever, so it runs in a confined process under a time limit.
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
"""Their versions are part of the digest: others may judge an answer otherwise."""
SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Maths(ProblemList):
    """Problems with a final answer; see `Task` for what each member promises."""

    scorer: ConfinedFunction
    name: str = NAME
    is_repeatable: bool = True

    def score(self, index: int, completion: str) -> float:
        """1.0 iff the final answer equals the right one. Raises Undecided when sympy ran out of time."""
        return ask_scorer(self.scorer, self.answer(index), answer_part(completion))


def load_maths(parameters: Mapping[str, int | str], folder: Path | None) -> Maths:
    """Build the task. Parameters: `data`, the digest of a data set with `prompt` and `answer`; `limit`."""
    problems = load_problems(parameters, folder)
    try:
        versions = [f"{name} {metadata.version(name)}" for name in LIBRARIES]
    except metadata.PackageNotFoundError as error:
        raise TaskError(f"task {NAME} needs the package {error.name}: pip install 'intellect-node[tasks]'") from error
    digest = digest_of(SCORER_VERSION, *versions, *texts_of(problems))
    return Maths(problems, digest, ConfinedFunction("roles.tasks.maths_scorer:score", seconds=SECONDS))
