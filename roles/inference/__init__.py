"""Inference: generating completions whose every token a validator can recompute, and prefilling them again."""
