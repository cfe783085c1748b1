"""Standard Gumbel noise that any device can recompute from (stream, seed, position, item).

word = philox4x32-10(counter = (item // 4, position, stream, 0), key = (seed mod 2^32, seed // 2^32))[item % 4]
u    = (word + 1/2) / 2^32                       in (0, 1), float64
G    = -log(-log(u))                             float64, rounded once to float32
"""

from __future__ import annotations

from enum import IntEnum

import torch

from roles.inference.philox import philox4x32

SEED_BITS = 63
_LOW32 = 0xFFFFFFFF
_BLOCK_ELEMENTS = 1 << 18  # elements of noise computed at once: about 20 MB of temporaries


class Stream(IntEnum):
    """What the items are. The noises of different streams are independent."""

    TOKENS = 0
    GROUPS = 1


def gumbel_noise(
    seeds: torch.Tensor, positions: torch.Tensor, items: int, *, first: torch.Tensor | None = None, stream: Stream
) -> torch.Tensor:
    """Noise of `items` items starting at `first` (each divisible by 4; 0 when None): float32 `[rows, items]`.

    `seeds` (0 <= s < 2^63), `positions` (0 <= i < 2^32) and `first` are int64 `[rows]` on one device.
    """
    check_range(seeds, SEED_BITS, "seed")
    check_range(positions, 32, "position")
    start = torch.zeros_like(seeds) if first is None else first
    rows = max(1, _BLOCK_ELEMENTS // max(items, 1))
    noise = torch.empty(len(seeds), items, dtype=torch.float32, device=seeds.device)
    for row in range(0, len(seeds), rows):
        part = slice(row, row + rows)
        for item in range(0, items, _BLOCK_ELEMENTS):
            block = noise[part, item : item + _BLOCK_ELEMENTS]
            block.copy_(_gumbel(seeds[part], positions[part], start[part] + item, block.shape[1], stream))
    return noise


def check_range(values: torch.Tensor, bits: int, name: str) -> None:
    """Raises ValueError unless all of the integers are in [0, 2^bits). On a GPU nothing is checked,
    as that would have to wait."""
    if values.is_floating_point():
        raise ValueError(f"{name} must be an integer")
    if values.device.type == "cpu" and values.numel():
        low, high = values.aminmax()
        if int(low) < 0 or int(high) >= 1 << bits:
            raise ValueError(f"{name} must be at least 0 and below 2^{bits}")


def _gumbel(
    seeds: torch.Tensor, positions: torch.Tensor, first: torch.Tensor, items: int, stream: Stream
) -> torch.Tensor:
    """Noise of one block, float64 `[rows, items]`."""
    lanes = torch.arange((items + 3) // 4, device=seeds.device)
    counter = ((first // 4)[:, None] + lanes, positions[:, None], seeds.new_tensor(stream), seeds.new_tensor(0))
    key = ((seeds & _LOW32)[:, None], (seeds >> 32)[:, None])
    words = philox4x32(counter, key).flatten(1)[:, :items]
    return -torch.log(-torch.log((words.double() + 0.5) * 2.0**-32))
