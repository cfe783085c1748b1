"""The status endpoint of a node, on loopback only, and its reader."""
