"""A data set whose answers are compared as text: the part of a completion after a mark, or the whole."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from roles.tasks.answers import answer_part
from roles.tasks.problems import ProblemList, digest_of, load_problems, texts_of

NAME = "match"
SCORER_VERSION = "match/1"


@dataclass(frozen=True, slots=True)
class Match(ProblemList):
    """Problems with one right text each; see `Task` for the contract of each member."""

    after: str
    name: str = NAME
    is_repeatable: bool = True

    def score(self, index: int, completion: str) -> float:
        """1.0 iff the text after the last mark equals the answer, ignoring blanks and case."""
        said = answer_part(completion)
        if self.after:
            _, mark, said = said.rpartition(self.after)
            if not mark:
                return 0.0
        return float(_plain(said) == _plain(self.answer(index)))


def load_match(parameters: Mapping[str, int | str], folder: Path | None) -> Match:
    """Build the task. Parameters: `data`, the digest of a data set with `prompt` and `answer`;
    `limit`; `after`, the mark."""
    problems, after = load_problems(parameters, folder), str(parameters.get("after", ""))
    return Match(problems, digest_of(SCORER_VERSION, after, *texts_of(problems)), after)


def _plain(text: str) -> str:
    return " ".join(text.split()).casefold()
