"""A hook for mkdocs: turns the Markdown files at the top of the repository into pages beside those of docs/.

Links are rewritten to work on the site too. Links to source files, which the site does not contain, become plain names.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[1]
PAGES = {"README.md": "index.md", "ARCHITECTURE.md": "architecture.md", "CHANGELOG.md": "changelog.md"}
_ATTRIBUTE = re.compile(r'\b(src|srcset|href)="docs/')
_LINK = re.compile(r"(?P<label>!?\[[^\]]*\])\((?P<target>[^)\s]+)\)")


def on_config(config: Any) -> Any:
    """Add every decision record to the navigation, so that a new one needs no line here."""
    decisions = [f"adr/{path.name}" for path in sorted((ROOT / "docs" / "adr").glob("*.md"))]
    config["nav"] = [{"Decisions": decisions} if "Decisions" in item else item for item in config["nav"]]
    return config


def on_files(files: Files, *, config: Any) -> Files:
    """Add the pages at the top of the repository."""
    for name, page in PAGES.items():
        text = rewrite_links((ROOT / name).read_text(encoding="utf-8"), folder=Path())
        files.append(File.generated(config, page, content=text))
    return files


def on_page_markdown(markdown: str, *, page: Any, config: Any, files: Files) -> str:
    """Fix links on the pages of docs/ that lead out of that folder."""
    if page.file.src_uri in PAGES.values():
        return markdown
    return rewrite_links(markdown, folder=Path("docs") / Path(page.file.src_uri).parent)


def rewrite_links(text: str, *, folder: Path) -> str:
    """Rewrite the links of a file in this folder of the repository for its page on the site."""
    if not folder.parts:
        text = _ATTRIBUTE.sub(r'\1="', text)
    return _LINK.sub(lambda found: _rewritten(found, folder), text)


def _rewritten(found: re.Match[str], folder: Path) -> str:
    label, target = found["label"], found["target"]
    path, anchor = target.partition("#")[0], target.partition("#")[2]
    if re.match(r"[a-z]+:", target) or not path:
        return found[0]
    place = (ROOT / folder / path).resolve().relative_to(ROOT)
    up = "../" * len(folder.relative_to("docs").parts) if folder.parts else ""
    if str(place) in PAGES:
        name = PAGES[str(place)]
    elif place.parts[0] == "docs":
        name = str(place.relative_to("docs"))
    else:
        return f"`{place}`"
    return f"{label}({up}{name}{f'#{anchor}' if anchor else ''})"
