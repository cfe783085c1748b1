"""Boards: the second way of signed rows, over relays, for when the DHT is eclipsed or down."""

from roles.boards.union import UnionDirectory

__all__ = ["UnionDirectory"]
