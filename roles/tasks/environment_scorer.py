"""Loads and scores tasks of `verifiers` inside the sandbox. Its event loop is created before rights are given up."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import importlib
import inspect
import json
import selectors
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any

import verifiers
import verifiers.v1 as vf
from verifiers.v1.configs.agent import AgentConfig

from roles.sandbox.expressions import only_expressions

_LOOP = asyncio.SelectorEventLoop(
    selectors.SelectSelector()
)  # the only means of waiting in a loop that the sandbox allows is `select`
_BUILD = vf.VersionInfo(version=verifiers.__version__)  # otherwise the library looks for its repository


class Unsupported(Exception):
    """The task needs something that a confined process does not have."""


def act(what: str, taskset: str, config: str, size: int, *arguments: Any) -> Any:
    """Dispatch a call. `source`: a digest of the module. `warm`: prepare what later calls need. `page`, start, stop:
    prompts. `score`, index, completion: the sum of the rewards."""
    if what == "source":
        return hash_source(taskset)
    tasks = open_tasks(taskset, config, size)
    if what == "page":
        start, stop = arguments
        return [prompt_of(task) for task in tasks[start:stop]]
    if what == "warm":
        with contextlib.suppress(Exception):  # an empty answer, only for what is loaded along the way
            _LOOP.run_until_complete(judge(tasks[0], ""))
        return None
    index, completion = arguments
    with only_expressions():
        return _LOOP.run_until_complete(judge(tasks[index], completion))


def hash_source(taskset: str) -> str:
    """SHA-256 over the module's Python files: another version of the scorer is another task."""
    path = Path(str(inspect.getsourcefile(importlib.import_module(taskset))))
    files = sorted(path.parent.rglob("*.py")) if path.name == "__init__.py" else [path]
    hashed = hashlib.sha256()
    for file in files:
        hashed.update(hashlib.sha256(file.read_bytes()).digest())
    return hashed.hexdigest()


@lru_cache(maxsize=4)
def open_tasks(taskset: str, config: str, size: int) -> list[Any]:
    """The first `size` tasks. Raises Unsupported unless each is one question and one answer."""
    module = importlib.import_module(taskset)
    exported = [getattr(module, name) for name in getattr(module, "__all__", ())]
    classes = [each for each in exported if isinstance(each, type) and issubclass(each, vf.Taskset)]
    if len(classes) != 1:
        raise Unsupported(f"the module {taskset} must export one Taskset by `__all__`, not {len(classes)}")
    kind = config_of(classes[0])
    tasks = list(islice(classes[0](kind.model_validate({"id": taskset, **json.loads(config)})), size))
    for task in tasks:
        check(task)
    return tasks


def config_of(taskset: type[Any]) -> type[Any]:
    """The class of a task set's settings."""
    from verifiers.v1.utils.generic import concrete_type

    found: type[Any] = concrete_type(taskset, vf.TasksetConfig) or vf.TasksetConfig
    return found


def check(task: Any) -> None:
    """Raises Unsupported with the reason when the task cannot be scored here."""
    needs_runtime = [hook.__name__ for hook in task.hooks("reward") if _wants_runtime(hook)]
    for is_so, why in (
        (task.NEEDS_CONTAINER or task.data.image, "it runs in a container"),
        (type(task).toolsets(task.config), "it has tools"),
        (task.plugged_judges(), "a model judges it"),
        (needs_runtime, "its rewards need a runtime"),
        (not task.hooks("reward"), "it has no reward"),
        (not task.data.prompt_text, "its first message is the user's to make up"),
    ):
        if is_so:
            raise Unsupported(f"the task {type(task).__name__} cannot be run here: {why}")


def prompt_of(task: Any) -> str:
    """The prompt, preceded by the system prompt."""
    return "\n\n".join(text for text in (task.data.system_prompt, task.data.prompt_text) if text)


async def judge(task: Any, completion: str) -> float:
    """The weighted sum of the rewards of a conversation of two messages."""
    nodes = [
        vf.MessageNode(message=vf.UserMessage(content=task.data.prompt_text)),
        vf.MessageNode(parent=0, message=vf.AssistantMessage(content=completion), sampled=True),
    ]
    asked = vf.TraceTask(type=type(task).__name__, data=task.data)
    agent = vf.AgentInfo(config=AgentConfig())
    trace = vf.Trace(verifiers=_BUILD, task=asked, agent=agent, nodes=nodes, is_completed=True, ok=True)
    await task.score(trace)
    return float(sum(reward.value for reward in trace.rewards.values() if reward is not None))


def _wants_runtime(hook: Any) -> bool:
    parameter = inspect.signature(hook).parameters.get("runtime")
    return parameter is not None and parameter.default is inspect.Parameter.empty
