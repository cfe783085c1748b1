"""Definition of a task: a finite ordered list of prompts with a deterministic scorer, identified by a digest.

Knows nothing of models, tokens or peers. Two nodes that agree on a task's digest give every completion the same score.
"""

from typing import Protocol


class TaskError(ValueError):
    """The run names a task, or gives it a parameter, that this version does not have."""


class Undecided(Exception):
    """The scorer ran out of time or broke, so the score of an answer is unknown."""


class Task(Protocol):
    """A finite ordered list of problems and the rule that scores an answer."""

    @property
    def name(self) -> str:
        """The task's name for `load_task`."""

    @property
    def size(self) -> int:
        """How many problems there are; an index is in `range(size)`."""

    @property
    def digest(self) -> str:
        """SHA-256, lower-case hex, over the problem list and the scorer's version."""

    @property
    def is_repeatable(self) -> bool:
        """Whether every machine gives an answer the same score. Where not (programs are run, and can read a clock), a
        differing score does not prove a lie and is refused softly."""

    def prompt(self, index: int) -> str:
        """Return the text shown to the policy. Raises IndexError outside `range(size)`."""

    def score(self, index: int, completion: str) -> float:
        """Score a completion (the text after the prompt, without special tokens): from 0.0 to 1.0.

        Total and bounded in time on any text. Raises IndexError outside `range(size)`, and Undecided when the scorer
        ran out of time on this text.
        """
