"""Which tokens top-k and top-p keep."""

from __future__ import annotations

import torch

_FIRST = 4096  # a nucleus is nearly always within this many; only otherwise is the whole vocabulary sorted


def support(scaled: torch.Tensor, top_k: int, top_p: float) -> torch.Tensor:
    """Which tokens may be drawn: the `top_k` likeliest, then the fewest of them whose mass reaches `top_p`.

    The smaller token id wins ties. At least one token is always kept. Bool `[rows, vocabulary]`.
    """
    if top_p == 1.0:
        count = min(top_k, scaled.shape[-1])
        kept = torch.full_like(scaled[:, :1], count, dtype=torch.int64)
        return _likeliest(scaled, kept, scaled.topk(count, dim=-1).values[:, -1:])
    ranked, kept = _nucleus(scaled, min(top_k or scaled.shape[-1], scaled.shape[-1]), top_p)
    return _likeliest(scaled, kept, ranked.gather(1, kept - 1))


def _nucleus(scaled: torch.Tensor, count: int, top_p: float) -> tuple[torch.Tensor, torch.Tensor]:
    """The likeliest values `[rows, some]`, descending, and how many of them `[rows, 1]` reach
    `top_p` of the first `count`."""
    if count > _FIRST:
        ranked = scaled.topk(_FIRST, dim=-1).values
        whole = scaled if count == scaled.shape[-1] else scaled.topk(count, dim=-1).values
        wanted = top_p * (whole - ranked[:, :1]).exp().sum(-1, keepdim=True, dtype=torch.float64)
        if bool((_weights(ranked).sum(-1, keepdim=True) > wanted).all()):
            return ranked, _reaching(ranked, wanted)
    ranked = scaled.topk(count, dim=-1).values
    wanted = top_p * _weights(ranked).sum(-1, keepdim=True)
    return ranked, _reaching(ranked, wanted)


def _reaching(ranked: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    """How many of the descending values `[rows, some]` reach the mass `wanted` `[rows, 1]` together; at least one."""
    weights = _weights(ranked)
    return (weights.cumsum(-1) - weights < wanted).sum(-1, keepdim=True).clamp(min=1)


def _weights(ranked: torch.Tensor) -> torch.Tensor:
    return (ranked.double() - ranked[:, :1].double()).exp()


def _likeliest(scaled: torch.Tensor, count: torch.Tensor, least: torch.Tensor) -> torch.Tensor:
    """The `count` `[rows, 1]` likeliest tokens of each row; the last of them has the value `least` `[rows, 1]`."""
    above, equal = scaled > least, scaled == least
    room = count - above.sum(-1, keepdim=True)
    return above | (equal & (equal.cumsum(-1) <= room))
