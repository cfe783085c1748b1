"""Inference: generates completions whose every token a validator can recompute, and prefills them again."""
