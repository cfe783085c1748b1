"""Delta of two checkpoints: losslessly codes one safetensors directory against another. Knows no network.

A bf16 weight changes when the step crosses its rounding cell, so the base weight's exponent determines the probability
of a change. Positions and steps are coded under those probabilities. `encode_delta` makes the file, `apply_delta`
rebuilds the checkpoint and checks it.
"""

from roles.shardcast.delta.applying import BaseFiles, Data, FolderBase, apply_delta, decode_files
from roles.shardcast.delta.chaining import DeltaBase
from roles.shardcast.delta.encoding import WORTHWHILE_SHARE, DeltaReport, encode_delta, encode_worthwhile

__all__ = [
    "WORTHWHILE_SHARE",
    "BaseFiles",
    "Data",
    "DeltaBase",
    "DeltaReport",
    "FolderBase",
    "apply_delta",
    "decode_files",
    "encode_delta",
    "encode_worthwhile",
]
