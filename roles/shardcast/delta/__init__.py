"""Delta of two checkpoints: owns the lossless coding of one safetensors directory against another, and knows no network.

A bf16 weight changes when the step crosses its rounding cell, so the base weight's exponent sets the odds; positions and
steps are coded under those odds. `encode_delta` makes the file, `apply_delta` rebuilds the checkpoint and checks it.
"""

from roles.shardcast.delta.applying import apply_delta
from roles.shardcast.delta.encoding import DeltaReport, encode_delta

__all__ = ["DeltaReport", "apply_delta", "encode_delta"]
