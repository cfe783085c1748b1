"""Tiny models of many families, with random weights, as checkpoint folders."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

VOCABULARY = 64
COMMON: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": None,
    "eos_token_id": 1,
    "initializer_range": 0.3,  # sharp enough to show leaks of another row's tokens
}
EXPERTS: dict[str, Any] = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
FAMILIES: Mapping[str, dict[str, Any]] = {
    "llama": {},
    "qwen2": {},
    "qwen3": {},
    "gemma2": {"sliding_window": 4, "query_pre_attn_scalar": 8},  # tanh on scores and logits, sliding windows
    "gemma3_text": {"sliding_window": 4, "query_pre_attn_scalar": 8},
    "qwen3_moe": EXPERTS,
    "mixtral": {"num_local_experts": 4, "num_experts_per_tok": 2},
}
SEES: dict[str, Any] = {  # what a model that takes pictures too has beside its text
    "vision_config": {
        "hidden_size": 16,
        "intermediate_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "image_size": 28,
        "patch_size": 14,
    },
    "mm_tokens_per_image": 4,
    "boi_token_index": 60,
    "eoi_token_index": 61,
    "image_token_index": 62,
}


def write_model(folder: Path, family: str, **changes: Any) -> Path:
    """A checkpoint of that family."""
    torch.manual_seed(7)
    given = {**COMMON, **FAMILIES.get(family, {}), **changes}
    if family == "gemma3":
        given = {"text_config": {**COMMON, **FAMILIES["gemma3_text"], **changes}, **SEES}
    config = AutoConfig.for_model(family, **given)
    model: Any = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    if family.startswith("gemma"):
        _norms_of_one(model)
    model.save_pretrained(folder)
    return folder


def _norms_of_one(model: Any) -> None:
    """Gemma's norms scale by one plus their weight. transformers 4 initialises the weight to one too, and
    then no completion ends early."""
    for name, tensor in model.named_parameters():
        if "norm" in name and "vision" not in name:
            tensor.data.zero_()


Writer = Callable[..., Path]
