"""Attention over packed rows: each attends to itself alone, without a mask as wide as the pack.

Registered with transformers under the name `packed`. On a GPU in half precision it is PyTorch's variable-length flash kernel;
elsewhere each row is a causal attention of its own. Knows tensors; knows nothing of models.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

NAME = "packed"
_HALF = (torch.bfloat16, torch.float16)

_varlen: Any = None
with suppress(ImportError):  # PyTorch before 2.10: each row by itself on a GPU too
    _varlen = import_module("torch.nn.attention.varlen").varlen_attn


def packing_of(bounds: Sequence[int], device: torch.device) -> dict[str, Any]:
    """What a model's forward pass is told of a pack, under the names that transformers has for it."""
    starts = torch.tensor(bounds, dtype=torch.int32, device=device)
    longest = max(end - start for start, end in pairwise(bounds))
    return {"cu_seq_lens_q": starts, "cu_seq_lens_k": starts, "max_length_q": longest, "max_length_k": longest}


def attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    cu_seq_lens_q: Tensor | None = None,
    max_length_q: int | None = None,
    **_others: Any,
) -> tuple[Tensor, None]:
    """Attend within each row: query (1, H, T, D), key and value (1, K, T, D) -> (1, T, H, D). One row where none are told."""
    fits = query.dtype in _HALF and query.shape[-1] <= 256 and query.shape[-1] % 8 == 0 and softcap is None
    if query.is_cuda and fits and _varlen is not None:
        starts, longest = cu_seq_lens_q, max_length_q
        if starts is None or longest is None:
            longest = query.shape[2]
            starts = torch.tensor((0, longest), dtype=torch.int32, device=query.device)
        q, k, v = (tensor[0].transpose(0, 1).contiguous() for tensor in (query, key, value))
        window = (-1 if sliding_window is None else sliding_window - 1, 0)
        mixed = _varlen(
            q, k, v, starts, starts, longest, longest,
            scale=scaling, window_size=window, enable_gqa=q.shape[1] != k.shape[1],
        )  # fmt: skip
        return mixed.unsqueeze(0), None
    lengths = [query.shape[2]] if cu_seq_lens_q is None else cu_seq_lens_q.diff().tolist()
    # split and not slices: the gradient of each slice would be as wide as the pack
    parts = (torch.split(tensor, lengths, dim=2) for tensor in (query, key, value))
    rows = [_attend_row(q, k, v, scaling, sliding_window, softcap) for q, k, v in zip(*parts, strict=True)]
    return torch.cat(rows, dim=2).transpose(1, 2), None


def _attend_row(
    query: Tensor, key: Tensor, value: Tensor, scaling: float | None, window: int | None, softcap: float | None
) -> Tensor:
    """One row: (1, H, T, D) -> (1, H, T, D)."""
    length, shares = query.shape[2], query.shape[1] != key.shape[1]
    if softcap is not None:
        return _attend_capped(query, key, value, scaling, window, softcap)
    if window is None or window >= length:
        return scaled_dot_product_attention(query, key, value, is_causal=True, scale=scaling, enable_gqa=shares)
    mask = _window_mask(length, window, query.device)
    return scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=scaling, enable_gqa=shares)


def _attend_capped(
    query: Tensor, key: Tensor, value: Tensor, scaling: float | None, window: int | None, softcap: float
) -> Tensor:
    """Scores bounded to [-softcap, softcap] by a hyperbolic tangent, which no fused kernel here does (Gemma 2)."""
    repeats = query.shape[1] // key.shape[1]
    key, value = (tensor.repeat_interleave(repeats, dim=1) for tensor in (key, value))
    scores = query @ key.transpose(2, 3) * (scaling if scaling is not None else query.shape[-1] ** -0.5)
    scores = softcap * torch.tanh(scores / softcap)
    mask = _window_mask(query.shape[2], window or query.shape[2], query.device)
    weights = scores.masked_fill(~mask, float("-inf")).softmax(-1, dtype=torch.float32).to(value.dtype)
    return weights @ value


def _window_mask(length: int, window: int, device: torch.device) -> Tensor:
    """(T, T), True where a token may look: `window` tokens back, itself counted."""
    at = torch.arange(length, device=device)
    ahead = at.unsqueeze(1) - at
    return (ahead >= 0) & (ahead < window)


AttentionInterface.register(NAME, attend)
