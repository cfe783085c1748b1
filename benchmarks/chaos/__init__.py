"""A network of real processes under random faults, and what is left of it: `scripts/chaos`."""
