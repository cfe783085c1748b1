"""Size and speed of checkpoint deltas over real optimizer steps: see `__main__`."""
