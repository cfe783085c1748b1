"""Rollouts: the one Parquet file that a submission names by digest."""
