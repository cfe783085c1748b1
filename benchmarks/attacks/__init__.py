"""How often each cheat is caught: `python -m benchmarks.attacks`."""
