"""Measurements, each run as `python -m benchmarks.NAME`: a table for people, then one line of JSON."""
