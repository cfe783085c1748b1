"""Boards: a second way to exchange signed rows, over relays, for when the DHT is eclipsed or down."""

from roles.boards.union import UnionDirectory

__all__ = ["UnionDirectory"]
