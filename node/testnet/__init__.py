"""A whole network on one machine: every node in its own process, a chain, a live view, and an ordered shutdown."""
