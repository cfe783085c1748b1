"""Generates and scores reasoning-gym problems inside the sandbox.

Several of its data sets pass the answer to `eval`, or to sympy, which does the same: an answer that would
become code there is wrong.
"""

from __future__ import annotations

import json
import re
from functools import lru_cache
from typing import Any

import reasoning_gym
from reasoning_gym.utils import extract_answer
from sympy.core.random import seed as seed_sympy

from roles.sandbox.expressions import only_expressions

SUMS = frozenset({"countdown", "puzzle24"})
"""Data sets that ask for a sum of given numbers; names that stand for other numbers are not allowed in an answer."""
SUM = re.compile(r"[\d\s.+*/()-]*", re.ASCII)


def act(what: str, name: str, seed: int, size: int, config: str, *arguments: Any) -> Any:
    """Dispatch a call. `warm`: prepare what later calls need. `page`, start, stop: questions and answers. `score`,
    index, completion: from 0 to 1; the text between answer tags counts, or else the whole text."""
    dataset = open_dataset(name, seed, size, config)
    if what == "page":
        start, stop = arguments
        return [[dataset[index]["question"], str(dataset[index]["answer"])] for index in range(start, stop)]
    if what == "warm":
        return score(dataset, 0, str(dataset[0]["answer"]))
    index, completion = arguments
    tagged = extract_answer(completion)
    return score(dataset, index, completion.strip() if tagged is None else tagged)


def score(dataset: Any, index: int, answer: str) -> Any:
    """The data set's score for the answer."""
    entry = dataset[index]
    if entry["metadata"].get("source_dataset") in SUMS and not SUM.fullmatch(answer):
        answer = ""
    seed_sympy(0)  # it tests expressions at random points, which must be the same on every machine
    with only_expressions():
        return dataset.score_answer(answer, entry)


@lru_cache(maxsize=4)
def open_dataset(name: str, seed: int, size: int, config: str) -> Any:
    """The data set; its problems depend only on these arguments."""
    return reasoning_gym.create_dataset(name, seed=seed, size=size, **json.loads(config))
