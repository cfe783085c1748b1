"""Measurements. Each runs as `python -m benchmarks.NAME` and prints a table for people, then one line of JSON."""
