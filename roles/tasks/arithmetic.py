"""The default task: sums with the working written out.

The problems come from reasoning-gym's `chain_sum` (4 to 5 one-digit terms, seed 2); sums without a minus sign are kept,
in order and without repeats. The list is shipped as `chain_sum.txt`, because importing reasoning-gym costs 1.5 s and 60
MB; a test regenerates it. Prompt `7+4+9+6>`, answer `7+4=11;11+9=20;20+6=26;#26`.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from roles.tasks.task import TaskError

NAME = "arithmetic"
SCORER_VERSION = "arithmetic/1"
PROBLEMS_SHA256 = "8e7ba56767279d5a59c9c35269ec3b15f522ebb77a473abe5fff1da0cdb68f72"
MAX_COMPLETION_CHARS = 1024  # the longest right answer has 35; longer text is wrong without being read


def compute_solution(terms: tuple[int, ...]) -> str:
    """Write out the sum: `(7, 4, 9) -> "7+4=11;11+9=20;#20"`."""
    total, working = terms[0], ""
    for term in terms[1:]:
        working += f"{total}+{term}={total + term};"
        total += term
    return f"{working}#{total}"


def load_problems() -> tuple[str, ...]:
    """Read the shipped list. Raises TaskError when the file is not the one this version was built with."""
    data = resources.files("roles.tasks").joinpath("chain_sum.txt").read_bytes()
    if hashlib.sha256(data).hexdigest() != PROBLEMS_SHA256:
        raise TaskError("the shipped problem list roles/tasks/chain_sum.txt is damaged: install the package again")
    return tuple(data.decode("ascii").split())


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """Sums with the working written out; see `Task` for the contract of each member."""

    problems: tuple[str, ...]
    digest: str
    name: str = NAME
    is_repeatable: bool = True

    @property
    def size(self) -> int:
        """How many sums there are."""
        return len(self.problems)

    def terms(self, index: int) -> tuple[int, ...]:
        """Return the numbers to add. Raises IndexError outside `range(size)`."""
        if not 0 <= index < len(self.problems):
            raise IndexError(f"problem {index} of {len(self.problems)}")
        return tuple(int(term) for term in self.problems[index].split("+"))

    def prompt(self, index: int) -> str:
        """Return the sum as the policy sees it: `7+4+9+6>`."""
        return "+".join(str(term) for term in self.terms(index)) + ">"

    def score(self, index: int, completion: str) -> float:
        """Return 1.0 iff the text ends in `;#N` with N the sum, and gives no other `#` answer before it.

        The working is not judged, only the answer, as in the mathematics tasks of INTELLECT-2 (section 3.1).
        """
        answer = f"#{sum(self.terms(index))}"
        if len(completion) > MAX_COMPLETION_CHARS:
            return 0.0
        working, separator, ending = completion.rpartition(";")
        return float(bool(separator) and ending == answer and "#" not in working)


def load_arithmetic(parameters: Mapping[str, int | str], folder: Path | None = None) -> Arithmetic:
    """Build the task. Parameter `size`: how many problems of the list to use (1 to all, default all)."""
    problems = load_problems()
    size = parameters.get("size", len(problems))
    if not isinstance(size, int) or isinstance(size, bool) or not 1 <= size <= len(problems):
        raise TaskError(f"task {NAME}: size must be a whole number from 1 to {len(problems)}, not {size!r}")
    chosen = problems[:size]
    return Arithmetic(problems=chosen, digest=compute_digest(chosen))


def compute_digest(problems: tuple[str, ...]) -> str:
    """Hash the scorer's version and the ordered problems (newline-separated ASCII, no newline in a problem)."""
    return hashlib.sha256("\n".join((SCORER_VERSION, *problems)).encode("ascii")).hexdigest()
