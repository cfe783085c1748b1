"""The engine that runs a policy on this machine."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from roles.inference.engine import Engine


def build_engine(device: str, *, dtype: str, attention: str = "sdpa", chat: bool = False) -> Engine:
    """An engine without weights yet; numbers are `dtype` (float32, bfloat16 or float16). Imports PyTorch."""
    import torch

    from roles.inference.transformers_engine import TransformersEngine

    kind: torch.dtype = getattr(torch, dtype)
    return TransformersEngine(device=device, dtype=kind, attention=attention, chat=chat)
