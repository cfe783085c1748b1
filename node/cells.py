"""Words in a terminal's tables. Some are of peers: no markup to rich, which ends over a bracket it cannot read, and nothing
that steers the terminal."""

from __future__ import annotations

from rich.table import Table
from rich.text import Text

from node.terminal import plain


def words(text: object, style: str = "") -> Text:
    """The text as it stands."""
    return Text(plain(str(text)), style=style)


def add_row(table: Table, *cells: str | Text) -> None:
    """A row of plain words; what has a style was made by `words`."""
    table.add_row(*(words(cell) if isinstance(cell, str) else cell for cell in cells))
