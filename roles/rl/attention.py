"""Attention over packed rows: each row attends only to itself and to a prompt it shares, without a
mask as wide as the pack.

Registered with transformers under the name `packed`. On a GPU in half precision it is PyTorch's variable-length flash
kernel; elsewhere each row is a separate causal attention. Knows tensors, but nothing of models.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from inspect import signature
from itertools import accumulate, pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

NAME = "packed"
_HALF = (torch.bfloat16, torch.float16)

_varlen: Any = None
_needs_gqa_flag = False  # whether grouped heads must be requested: before PyTorch 2.12 they are accepted as they are
with suppress(ImportError):  # older PyTorch lacks it, or has it without windows: then rows are separate on a GPU too
    _found = import_module("torch.nn.attention.varlen").varlen_attn
    if "window_size" in signature(_found).parameters:
        _varlen, _needs_gqa_flag = _found, "enable_gqa" in signature(_found).parameters


def packing_of(
    bounds: Sequence[int], device: torch.device, stems: Sequence[int | None] | None = None
) -> dict[str, Any]:
    """The arguments that describe a pack to a model's forward pass, most of them under transformers' own names.

    `bounds` are the ends of its strands; `stems` name the strand that each continues (`roles.rl.strands`).
    """
    own = [torch.arange(start, end) for start, end in pairwise(bounds)]
    told = _ends("q", own, device)
    if stems is None or not any(stem is not None for stem in stems):
        return told | _ends("k", own, device)
    seen = [part if stem is None else torch.cat((own[stem], part)) for part, stem in zip(own, stems, strict=True)]
    return told | _ends("k", seen, device) | {"key_places": torch.cat(seen).to(device)}


def _ends(of: str, parts: Sequence[Tensor], device: torch.device) -> dict[str, Any]:
    lengths = list(map(len, parts))
    ends = torch.tensor(list(accumulate(lengths, initial=0)), dtype=torch.int32, device=device)
    return {f"cu_seq_lens_{of}": ends, f"max_length_{of}": max(lengths)}


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
    cu_seq_lens_k: Tensor | None = None,
    max_length_q: int | None = None,
    max_length_k: int | None = None,
    key_places: Tensor | None = None,
    **_others: Any,
) -> tuple[Tensor, None]:
    """Attend within each row: query (1, H, T, D), key and value (1, K, T, D) -> (1, T, H, D).
    Without bounds it is one row.

    `key_places` lists the tokens that the strands see, strand after strand: those of its stem, then its own.
    """
    if key_places is not None:
        key, value = key.index_select(2, key_places), value.index_select(2, key_places)
    fits = query.dtype in _HALF and query.shape[-1] <= 256 and query.shape[-1] % 8 == 0 and softcap is None
    if query.is_cuda and fits and _varlen is not None:
        if cu_seq_lens_q is None:
            max_length_q = max_length_k = query.shape[2]
            cu_seq_lens_q = cu_seq_lens_k = torch.tensor((0, max_length_q), dtype=torch.int32, device=query.device)
        places = (cu_seq_lens_q, cu_seq_lens_k, max_length_q, max_length_k)
        return _attend_flash(query, key, value, places, scaling, sliding_window), None
    # split rather than slices: the gradient of each slice would be as wide as the pack
    parts = (
        torch.split(tensor, tensor.shape[2] if ends is None else ends.diff().tolist(), dim=2)
        for tensor, ends in ((query, cu_seq_lens_q), (key, cu_seq_lens_k), (value, cu_seq_lens_k))
    )
    rows = [_attend_row(q, k, v, scaling, sliding_window, softcap) for q, k, v in zip(*parts, strict=True)]
    return torch.cat(rows, dim=2).transpose(1, 2), None


def _attend_flash(
    query: Tensor, key: Tensor, value: Tensor, places: tuple[Any, ...], scaling: float | None, window: int | None
) -> Tensor:
    """All rows at once in PyTorch's variable-length kernel, given the ends and longest of queries and keys."""
    q, k, v = (tensor[0].transpose(0, 1).contiguous() for tensor in (query, key, value))
    sides = (-1 if window is None else window - 1, 0)  # nothing to the right: queries and keys end at the same token
    grouped = {"enable_gqa": q.shape[1] != k.shape[1]} if _needs_gqa_flag else {}
    mixed: Tensor = _varlen(q, k, v, *places, scale=scaling, window_size=sides, **grouped)
    return mixed.unsqueeze(0)


def _attend_row(
    query: Tensor, key: Tensor, value: Tensor, scaling: float | None, window: int | None, softcap: float | None
) -> Tensor:
    """One row, or the end of one: query (1, H, Q, D), with keys of the whole row -> (1, H, Q, D)."""
    length, shares = key.shape[2], query.shape[1] != key.shape[1]
    if softcap is not None:
        return _attend_capped(query, key, value, scaling, window, softcap)
    if query.shape[2] == length and (window is None or window >= length):
        return scaled_dot_product_attention(query, key, value, is_causal=True, scale=scaling, enable_gqa=shares)
    mask = _window_mask(query.shape[2], length, window or length, query.device)
    return scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=scaling, enable_gqa=shares)


def _attend_capped(
    query: Tensor, key: Tensor, value: Tensor, scaling: float | None, window: int | None, softcap: float
) -> Tensor:
    """Scores bounded to [-softcap, softcap] by a hyperbolic tangent, which no fused kernel here supports (Gemma 2)."""
    repeats = query.shape[1] // key.shape[1]
    key, value = (tensor.repeat_interleave(repeats, dim=1) for tensor in (key, value))
    scores = query @ key.transpose(2, 3) * (scaling if scaling is not None else query.shape[-1] ** -0.5)
    scores = softcap * torch.tanh(scores / softcap)
    length = key.shape[2]
    mask = _window_mask(query.shape[2], length, window or length, query.device)
    weights = scores.masked_fill(~mask, float("-inf")).softmax(-1, dtype=torch.float32).to(value.dtype)
    return weights @ value


def _window_mask(count: int, length: int, window: int, device: torch.device) -> Tensor:
    """(Q, T), True where each of the last Q of T tokens may attend: `window` tokens back, itself included."""
    at = torch.arange(length, device=device)
    ahead = at[length - count :].unsqueeze(1) - at
    return (ahead >= 0) & (ahead < window)


AttentionInterface.register(NAME, attend)
