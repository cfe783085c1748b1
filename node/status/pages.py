"""The page's files, read once: HTML, style, scripts, and the two vendored pieces (uPlot, the Inter typeface)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

FOLDER = Path(__file__).parent / "page"
MEDIA = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
    ".woff2": "font/woff2",
}


@dataclass(frozen=True, slots=True)
class PageFile:
    """A file as it is sent."""

    body: bytes
    media: str


@cache
def page_files() -> Mapping[str, PageFile]:
    """Every file by its path below the folder, such as `index.html`. Nothing else is served."""
    return {
        str(path.relative_to(FOLDER)): PageFile(path.read_bytes(), MEDIA[path.suffix])
        for path in sorted(FOLDER.rglob("*"))
        if path.suffix in MEDIA
    }
