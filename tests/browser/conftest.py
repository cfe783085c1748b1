"""One Chromium for all tests of the page. Without one they are skipped, with a message."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager

import pytest

from node.status.server import status_server
from node.status.story import Story
from tests.browser.chromium import Page, find_chromium, new_page, running_chromium


@pytest.fixture(scope="session")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """DevTools URL of a running browser."""
    program = find_chromium()
    if program is None:
        pytest.skip("no Chromium on this machine (Debian: apt-get install chromium); CHROMIUM names another path")
    with running_chromium(program, tmp_path_factory.mktemp("chromium")) as base:
        yield base


@asynccontextmanager
async def showing(
    story: Story, chromium: str, *, width: int = 1280, height: int = 900, prefer: Mapping[str, str] | None = None
) -> AsyncIterator[Page]:
    """A tab that shows a story's page, once its first rows have arrived."""
    async with (
        status_server(0, lambda: {"role": "testnet"}, story=story) as port,
        new_page(chromium, width=width, height=height) as page,
    ):
        await page.prefer(**(prefer or {}))
        await page.open(f"http://127.0.0.1:{port}/")
        await page.until("document.querySelectorAll('#nodes tbody tr').length")
        yield page
