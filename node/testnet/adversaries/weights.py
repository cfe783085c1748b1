"""Alters the policy's weights: quantised, shortened, perturbed. Takes a checkpoint folder and writes an altered one."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

Tensors = dict[str, torch.Tensor]
FP8_LARGEST = 448.0
RANK = 8
"""Rank of a low-rank perturbation, a common value for LoRA adapters."""
_LAYER = re.compile(r"\.layers\.(\d+)\.")


@dataclass(frozen=True, slots=True)
class Alteration:
    """What is done to one matrix (float32 `[out, in]` in and out), and which layers are kept; None keeps all.

    `whole_head` leaves embedding and head unchanged, as quantised serving commonly does.
    """

    matrix: Callable[[str, torch.Tensor], torch.Tensor] = lambda name, weight: weight
    layers: Callable[[int], range] | None = None
    whole_head: bool = False


def quantised(bits: int, *, group: int = 0, whole_head: bool = False) -> Alteration:
    """Symmetric rounding to `bits` bits, with one scale per row, or per `group` numbers of a row."""
    largest = 2 ** (bits - 1) - 1

    def round_off(name: str, weight: torch.Tensor) -> torch.Tensor:
        blocks = weight.reshape(-1, group) if group and weight.shape[1] % group == 0 else weight
        scale = blocks.abs().amax(1, keepdim=True).clamp(min=1e-12) / largest
        rounded: torch.Tensor = (torch.round(blocks / scale) * scale).reshape(weight.shape)
        return rounded

    return Alteration(round_off, whole_head=whole_head)


def eight_bit_float(*, whole_head: bool = False) -> Alteration:
    """Rounding to float8 (e4m3), with each row scaled to the format's range, as engines do."""

    def round_off(name: str, weight: torch.Tensor) -> torch.Tensor:
        scale = weight.abs().amax(1, keepdim=True).clamp(min=1e-12) / FP8_LARGEST
        return (weight / scale).to(torch.float8_e4m3fn).float() * scale

    return Alteration(round_off, whole_head=whole_head)


def fewer_layers(kept: float) -> Alteration:
    """Keep only the first layers, this share of them; at least one is dropped and one kept."""
    return Alteration(layers=lambda count: range(max(1, min(count - 1, round(count * kept)))))


def every_other_layer() -> Alteration:
    """Keep every other layer: a model of half the depth."""
    return Alteration(layers=lambda count: range(0, count, 2))


def low_rank(size: float) -> Alteration:
    """Like a small fine-tuning: a random rank-8 change to each matrix, of `size` times the matrix's norm."""

    def nudge(name: str, weight: torch.Tensor) -> torch.Tensor:
        draw = _generator(name)
        change = torch.randn(weight.shape[0], RANK, generator=draw) @ torch.randn(RANK, weight.shape[1], generator=draw)
        nudged: torch.Tensor = weight + change * (size * weight.norm() / change.norm())
        return nudged

    return Alteration(nudge, whole_head=True)


def signed_steps(size: float) -> Alteration:
    """Like a few Adam updates: each weight moved up or down by `size`."""
    return Alteration(
        lambda name, weight: weight + size * torch.sign(torch.randn(weight.shape, generator=_generator(name)))
    )


def other_weights(share: float) -> Alteration:
    """Like another model of the same shape: noise of `share` times each matrix's standard deviation."""
    return Alteration(
        lambda name, weight: weight + share * weight.std() * torch.randn(weight.shape, generator=_generator(name))
    )


def write_altered(source: Path, out: Path, alteration: Alteration) -> Path:
    """Write the checkpoint in `source` with altered weights to a folder of its own."""
    out.mkdir(parents=True, exist_ok=True)
    config = json.loads((source / "config.json").read_text())
    for file in source.iterdir():
        if file.is_file() and file.suffix != ".safetensors":
            shutil.copyfile(file, out / file.name)
    tensors: Tensors = {}
    for file in sorted(source.glob("*.safetensors")):
        tensors |= load_file(file)
    if alteration.layers is not None:
        kept = alteration.layers(int(config["num_hidden_layers"]))
        tensors = _relabelled(tensors, {old: new for new, old in enumerate(kept)})
        config["num_hidden_layers"] = len(kept)
        config["layer_types"] = (
            (config.get("layer_types") or [None])[: len(kept)] if config.get("layer_types") else None
        )
        (out / "config.json").write_text(
            json.dumps({name: value for name, value in config.items() if value is not None})
        )
    save_file(
        {name: _altered(name, tensor, alteration) for name, tensor in tensors.items()},
        out / "model.safetensors",
        {"format": "pt"},
    )
    return out


@torch.inference_mode()
def _altered(name: str, tensor: torch.Tensor, alteration: Alteration) -> torch.Tensor:
    is_head = "embed" in name or "lm_head" in name
    if tensor.dim() != 2 or (is_head and alteration.whole_head):
        return tensor
    return alteration.matrix(name, tensor.float()).to(tensor.dtype).contiguous()


def _relabelled(tensors: Tensors, numbers: Mapping[int, int]) -> Tensors:
    """Tensors of the kept layers under their new numbers, and those that belong to no layer."""
    result: Tensors = {}
    for name, tensor in tensors.items():
        found = _LAYER.search(name)
        if found is None:
            result[name] = tensor
        elif int(found[1]) in numbers:
            result[name[: found.start(1)] + str(numbers[int(found[1])]) + name[found.end(1) :]] = tensor
    return result


def _generator(name: str) -> torch.Generator:
    """A random generator for each matrix, the same in every process."""
    number = int.from_bytes(hashlib.sha256(f"0/{name}".encode()).digest()[:7], "big")
    return torch.Generator().manual_seed(number)
