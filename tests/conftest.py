"""The order of tests, and the global state restored after each."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import structlog


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run files with slow tests first, so that no test process is left with one when the others have finished."""
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow)


@pytest.fixture(autouse=True)
def _logs_as_they_were() -> Iterator[None]:
    """Restore logging after each test, because commands configure it."""
    before = structlog.get_config()
    yield
    structlog.configure(**before)
