"""What generates and judges reasoning-gym problems inside the sandbox."""

from __future__ import annotations

import json
from functools import lru_cache
from typing import Any

import reasoning_gym
from reasoning_gym.utils import extract_answer


def act(what: str, name: str, seed: int, size: int, config: str, *arguments: Any) -> Any:
    """`page`, start, stop: questions and answers. `score`, index, completion: from 0 to 1; what stands between answer tags
    counts, else the whole text."""
    dataset = open_dataset(name, seed, size, config)
    if what == "page":
        start, stop = arguments
        return [[dataset[index]["question"], str(dataset[index]["answer"])] for index in range(start, stop)]
    index, completion = arguments
    tagged = extract_answer(completion)
    return dataset.score_answer(completion.strip() if tagged is None else tagged, dataset[index])


@lru_cache(maxsize=4)
def open_dataset(name: str, seed: int, size: int, config: str) -> Any:
    """The data set; its problems depend on nothing but these."""
    return reasoning_gym.create_dataset(name, seed=seed, size=size, **json.loads(config))
