# mypy: disable-error-code="misc,untyped-decorator"
"""A task set for the `verifiers` library, as a third-party package would have it, and some that cannot be run here."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import verifiers.v1 as vf


class SumData(vf.TaskData):
    answer: str = ""


class SumConfig(vf.TasksetConfig):
    first: int = 1
    kind: str = "sum"


class SumTask(vf.Task[SumData]):
    @vf.reward(weight=0.75)
    async def is_right(self, task: SumData, trace: Any) -> float:
        return float(trace.last_reply == task.answer)

    @vf.reward(weight=0.25)
    async def is_short(self, trace: Any) -> float:
        return float(len(trace.last_reply) < 4)


class ContainedTask(SumTask):
    NEEDS_CONTAINER = True


class FetchedTask(SumTask):
    @vf.reward
    async def found(self, runtime: Any) -> float:
        return 1.0


class EvaluatedTask(vf.Task[SumData]):
    @vf.reward
    async def is_right(self, task: SumData, trace: Any) -> float:
        return float(eval(trace.last_reply) == int(task.answer))  # noqa: S307 - as rewards of others do


class SumTaskset(vf.Taskset[SumTask, SumConfig]):
    def load(self) -> Iterable[SumTask]:
        kinds = {"sum": SumTask, "contained": ContainedTask, "fetched": FetchedTask, "evaluated": EvaluatedTask}
        if self.config.kind == "online":
            import urllib.request

            urllib.request.urlopen("http://127.0.0.1:1/data")
        for number in range(self.config.first, 9):
            data = SumData(prompt=f"{number}+1=", answer=str(number + 1), system_prompt="Add.")
            yield kinds[self.config.kind](data, self.config.task)


__all__ = ["SumTaskset"]
