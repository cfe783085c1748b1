"""A checkpoint folder (config.json, *.safetensors, tokenizer files) into a model in memory.

No network, no pickle, no remote code.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast
from transformers.utils import logging as transformers_logging

from roles.inference.errors import BadCheckpoint

transformers_logging.disable_progress_bar()

_CONFIG_BYTES = 1 << 20
_LIBRARY_ERRORS = (OSError, ValueError, TypeError, KeyError, AttributeError, RuntimeError, SafetensorError)
_NOT_ARCHITECTURE = frozenset({"_name_or_path", "transformers_version"})


def read_architecture(checkpoint: Path) -> dict[str, object]:
    """What config.json says, less what does not shape the model. Raises `BadCheckpoint`."""
    with _refusals(checkpoint):
        raw = (checkpoint / "config.json").read_bytes()
        if len(raw) > _CONFIG_BYTES:
            raise BadCheckpoint(f"{checkpoint.name}: config.json is too long")
        config = json.loads(raw)
        if not isinstance(config, dict):
            raise BadCheckpoint(f"{checkpoint.name}: config.json is not an object")
        return {key: value for key, value in config.items() if key not in _NOT_ARCHITECTURE}


def load_model(checkpoint: Path, *, device: torch.device, dtype: torch.dtype, attention: str) -> Any:
    """A causal language model in evaluation mode, with the attention kernel named. Raises `BadCheckpoint`."""
    with _refusals(checkpoint):
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            checkpoint,
            dtype=dtype,
            attn_implementation=attention,
            local_files_only=True,
            use_safetensors=True,
            trust_remote_code=False,
            output_loading_info=True,
        )
    model, report = loaded
    # The library fills what is missing with random numbers and only warns.
    for fault in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        if report.get(fault):
            raise BadCheckpoint(f"{checkpoint.name}: weights do not fit config.json ({fault.replace('_', ' ')})")
    return model.to(device).eval().requires_grad_(False)


def load_tokenizer(folder: Path) -> Any:
    """The tokenizer of a folder, tokenizer.json to the letter; it must name an end-of-sequence token.

    Not `AutoTokenizer`: for a model type it knows it puts its own splitting rules over the file's.
    Raises `BadCheckpoint`.
    """
    with _refusals(folder):
        tokenizer = PreTrainedTokenizerFast.from_pretrained(folder, local_files_only=True)
    if tokenizer.eos_token_id is None:
        raise BadCheckpoint(f"{folder.name}: the tokenizer has no end-of-sequence token")
    return tokenizer


@torch.inference_mode()
def swap_weights(model: Any, checkpoint: Path) -> None:
    """Copy a checkpoint's weights over a model of the same architecture.

    Names and shapes are compared before the first byte is copied. Raises `BadCheckpoint`.
    """
    targets: dict[str, torch.Tensor] = model.state_dict()
    with _refusals(checkpoint):
        tensors = {name: tensor for file in _weight_files(checkpoint) for name, tensor in _tensors(file)}
    loaded = {targets[name].data_ptr() for name in tensors if name in targets}
    # A tied weight (the output embedding) is stored once, under one of its names.
    missing = [name for name, tensor in targets.items() if name not in tensors and tensor.data_ptr() not in loaded]
    if missing or not tensors.keys() <= targets.keys():
        raise BadCheckpoint(f"{checkpoint.name}: other weights than the model has")
    if any(targets[name].shape != tensor.shape for name, tensor in tensors.items()):
        raise BadCheckpoint(f"{checkpoint.name}: weights of another shape than the model's")
    for name, tensor in tensors.items():
        targets[name].copy_(tensor)


def _weight_files(checkpoint: Path) -> list[Path]:
    files = sorted(checkpoint.glob("*.safetensors"))
    if not files:
        raise BadCheckpoint(f"{checkpoint.name}: no safetensors file")
    return files


def _tensors(file: Path) -> Iterator[tuple[str, torch.Tensor]]:
    with safe_open(file, framework="pt") as weights:
        for name in weights.keys():
            yield name, weights.get_tensor(name)


@contextmanager
def _refusals(folder: Path) -> Iterator[None]:
    """Whatever the libraries raise on a bad folder becomes `BadCheckpoint`."""
    try:
        yield
    except _LIBRARY_ERRORS as error:
        raise BadCheckpoint(f"{folder.name}: not a checkpoint this engine can run ({type(error).__name__})") from error
