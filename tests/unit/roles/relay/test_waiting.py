"""Long polls: which one gives way to which."""

from __future__ import annotations

import asyncio

from roles.relay.waiting import Waiting


class Crowd:
    """Long polls without a time limit, and which of them have been answered."""

    def __init__(self, most: int, group: asyncio.TaskGroup) -> None:
        self.waiting, self.answered = Waiting(most), list[str]()
        self._group = group
        self._tasks = list[asyncio.Task[None]]()

    async def ask(self, address: str, name: str) -> None:
        self._tasks.append(self._group.create_task(self._ask(address, name)))
        for _ in range(6):
            await asyncio.sleep(0)

    async def _ask(self, address: str, name: str) -> None:
        async with self.waiting.held(address, 60.0):
            await asyncio.Event().wait()
        self.answered.append(name)

    def go_home(self) -> None:
        for task in self._tasks:
            task.cancel()


async def test_held__of_too_many_the_eldest_of_the_busiest_address_is_answered() -> None:
    async with asyncio.TaskGroup() as group:
        crowd = Crowd(3, group)
        for address, name in (("other", "o"), ("crowd", "c1"), ("crowd", "c2")):
            await crowd.ask(address, name)
        await crowd.ask("new", "n")
        assert crowd.answered == ["c1"]
        await crowd.ask("crowd", "c3")
        assert crowd.answered == ["c1", "c2"]
        assert len(crowd.waiting) == 3
        crowd.go_home()


async def test_held__a_flood_of_one_address_answers_its_own_questions_only() -> None:
    async with asyncio.TaskGroup() as group:
        crowd = Crowd(4, group)
        await crowd.ask("node", "n")
        for number in range(20):
            await crowd.ask("flood", f"f{number}")
        assert crowd.answered == [f"f{number}" for number in range(17)]
        crowd.go_home()


async def test_held__one_that_ends_leaves_its_place() -> None:
    waiting = Waiting(1)
    async with waiting.held("a", 0.001):
        await asyncio.Event().wait()
    async with waiting.held("a", 0.0):
        assert len(waiting) == 0
    assert len(waiting) == 0
