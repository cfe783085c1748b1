"""What every test leaves as it found it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import structlog


@pytest.fixture(autouse=True)
def _logs_as_they_were() -> Iterator[None]:
    """Commands set up their logs; the next test's are not theirs."""
    before = structlog.get_config()
    yield
    structlog.configure(**before)
