"""A whole network on one machine: every node its own process, a chain, a live view, an ordered end."""
