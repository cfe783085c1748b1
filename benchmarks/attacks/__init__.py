"""Which cheat is caught how often: `python -m benchmarks.attacks`."""
