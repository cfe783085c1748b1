"""A network of real processes under random faults, and how well it survives: `scripts/chaos`."""
