"""Text in a terminal's tables. Some of it comes from peers, so it must not be parsed as rich markup (rich fails on an
unmatched bracket) and must not contain terminal control sequences."""

from __future__ import annotations

from rich.table import Table
from rich.text import Text

from node.terminal import plain


def words(text: object, style: str = "") -> Text:
    """The text verbatim."""
    return Text(plain(str(text)), style=style)


def add_row(table: Table, *cells: str | Text) -> None:
    """Add a row of plain text. Cells with a style are made by `words`."""
    table.add_row(*(words(cell) if isinstance(cell, str) else cell for cell in cells))
