"""Which tests come first, and what every test leaves as it found it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import structlog


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files with slow tests go first: of several workers none is left with one when the others have finished."""
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow)


@pytest.fixture(autouse=True)
def _logs_as_they_were() -> Iterator[None]:
    """Commands set up their logs; the next test's are not theirs."""
    before = structlog.get_config()
    yield
    structlog.configure(**before)
