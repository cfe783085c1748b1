"""Loads a checkpoint folder (config.json, *.safetensors, tokenizer files) into a model in memory.

No network, no pickle, no remote code.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError, safe_open
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast
from transformers.utils import logging as transformers_logging

from roles.inference.errors import BadCheckpoint, OutOfMemory

transformers_logging.disable_progress_bar()

DATED = "its chat template writes today's date, on which nodes do not agree; put a fixed date into it"
_CONFIG_BYTES = 1 << 20
_LIBRARY_ERRORS = (
    OSError,
    ValueError,
    TypeError,
    LookupError,
    ArithmeticError,
    AttributeError,
    AssertionError,
    ImportError,
    RuntimeError,
    SafetensorError,
    StrictDataclassError,
)
_NO_MEMORY = ("can't allocate memory", "CUDA error: out of memory", "_STATUS_ALLOC_FAILED")
"""Messages of PyTorch on a CPU, of CUDA itself, and of its libraries, which need memory of their own."""
_NOT_ARCHITECTURE = frozenset({"_name_or_path", "transformers_version"})
_KERNELS = ("_attn_implementation", "_experts_implementation")


def read_architecture(checkpoint: Path) -> dict[str, object]:
    """The contents of config.json without what does not shape the model. Raises `BadCheckpoint`."""
    with _refusals(checkpoint):
        raw = (checkpoint / "config.json").read_bytes()
        if len(raw) > _CONFIG_BYTES:
            raise BadCheckpoint(f"{checkpoint.name}: config.json is too long")
        config = json.loads(raw)
        if not isinstance(config, dict):
            raise BadCheckpoint(f"{checkpoint.name}: config.json is not an object")
        return {key: value for key, value in config.items() if key not in _NOT_ARCHITECTURE}


def read_config(checkpoint: Path, *, attention: str) -> Any:
    """config.json as transformers reads it, without kernels: a peer's file may name code on the Hub as a kernel, which
    the library would fetch and run whatever its other settings. Raises whatever the library does."""
    config = AutoConfig.from_pretrained(checkpoint, local_files_only=True, trust_remote_code=False)
    for name in _KERNELS:  # in its parts too
        if hasattr(config, name):
            setattr(config, name, None)
    config._attn_implementation = attention
    return config


def load_model(checkpoint: Path, *, device: torch.device, dtype: torch.dtype, attention: str) -> Any:
    """A causal language model in evaluation mode, with the named attention kernel. Raises `BadCheckpoint`."""
    _weight_files(checkpoint)
    with _refusals(checkpoint):
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            checkpoint,
            config=read_config(checkpoint, attention=attention),
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
            names = sorted(str(each) for each in report[fault])
            raise BadCheckpoint(
                f"{checkpoint.name}: weights do not fit config.json ({fault.replace('_', ' ')}: {names[0][:100]})"
            )
    for name, parameter in model.named_parameters():
        _check_finite(checkpoint, name, parameter)
    try:
        return model.to(device).eval().requires_grad_(False)
    except RuntimeError as error:
        if is_out_of_memory(error):
            raise OutOfMemory(f"{checkpoint.name}: the model does not fit into the memory of {device}") from error
        raise


def load_tokenizer(folder: Path) -> Any:
    """The tokenizer of a folder, exactly as in tokenizer.json; it must name an end-of-sequence token.

    Not `AutoTokenizer`, which overrides the file's splitting rules with its own for model types it
    knows. Raises `BadCheckpoint`.
    """
    with _refusals(folder):
        tokenizer = PreTrainedTokenizerFast.from_pretrained(folder, local_files_only=True)
    if tokenizer.eos_token_id is None:
        raise BadCheckpoint(f"{folder.name}: the tokenizer has no end-of-sequence token")
    return tokenizer


def check_tokenizer(tokenizer: Any, folder: Path, *, vocabulary: int, chat: bool) -> None:
    """Check that a tokenizer fits a model of `vocabulary` tokens and the run's use of a chat
    template. Raises `BadCheckpoint`."""
    if max(len(tokenizer), tokenizer.eos_token_id + 1) > vocabulary:
        raise BadCheckpoint(f"{folder.name}: the tokenizer has {len(tokenizer)} tokens, the model only {vocabulary}")
    if chat and not tokenizer.chat_template:
        raise BadCheckpoint(f"{folder.name}: the run speaks in a chat template, and the tokenizer has none")
    if chat and writes_date(tokenizer):
        raise BadCheckpoint(f"{folder.name}: {DATED}")


def writes_date(tokenizer: Any) -> bool:
    """Whether the chat template writes this machine's current date: honest prompts would
    differ by day and time zone."""
    return "strftime_now" in str(tokenizer.chat_template)


def tokenizer_digest(folder: Path) -> str | None:
    """Digest that identifies a tokenizer; None when the folder has none. Raises `BadCheckpoint`."""
    with _refusals(folder):
        file = folder / "tokenizer.json"
        return hashlib.sha256(file.read_bytes()).hexdigest() if file.is_file() else None


def read_shapes(checkpoint: Path) -> dict[str, tuple[int, ...]]:
    """Names and shapes of a checkpoint's weights, checked to be present and finite. Raises `BadCheckpoint`."""
    shapes = {}
    for name, tensor in _all_tensors(checkpoint):
        _check_finite(checkpoint, name, tensor)
        shapes[name] = tuple(tensor.shape)
    return shapes


def check_fits(checkpoint: Path, shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Check, before loading, that weights have the shapes that config.json describes. Raises `BadCheckpoint`.

    Experts are not checked: they are stored one by one under names of their own, but held stacked.
    """
    if any(".experts." in name for name in shapes):
        return
    with _refusals(checkpoint), torch.device("meta"):
        model: Any = AutoModelForCausalLM.from_config(read_config(checkpoint, attention="eager"))
    held: dict[int, dict[str, tuple[int, ...]]] = {}  # a tied weight is stored once, under one of its names
    for name, parameter in model.named_parameters(remove_duplicate=False):
        held.setdefault(id(parameter), {})[name] = tuple(parameter.shape)
    known = {name: shape for names in held.values() for name, shape in names.items()}
    known |= {name: tuple(buffer.shape) for name, buffer in model.named_buffers()}
    wrong = [min(names) for names in held.values() if not names.keys() & shapes.keys()]
    wrong += [name for name, shape in shapes.items() if known.get(name) != shape]
    if wrong:
        raise BadCheckpoint(f"{checkpoint.name}: weights do not fit config.json ({min(wrong)[:100]})")


@torch.inference_mode()
def swap_weights(model: Any, checkpoint: Path) -> bool:
    """Copy a checkpoint's weights into a model of the same architecture. Returns False, with nothing copied, when their
    names differ from the model's: they do not belong to it, or they are experts stored one by one and held stacked.

    Shapes and values are checked before the first byte is copied. Raises `BadCheckpoint`.
    """
    targets: dict[str, torch.Tensor] = model.state_dict()
    tensors = dict(_all_tensors(checkpoint))
    loaded = {targets[name].data_ptr() for name in tensors if name in targets}
    # A tied weight (the output embedding) is stored once, under one of its names.
    missing = [name for name, tensor in targets.items() if name not in tensors and tensor.data_ptr() not in loaded]
    if missing or not tensors.keys() <= targets.keys():
        return False
    for name, tensor in tensors.items():
        if targets[name].shape != tensor.shape:
            raise BadCheckpoint(f"{checkpoint.name}: weights of another shape than the model's ({name})")
        _check_finite(checkpoint, name, tensor)
    for name, tensor in tensors.items():
        targets[name].copy_(tensor)
    return True


def _all_tensors(checkpoint: Path) -> Iterator[tuple[str, torch.Tensor]]:
    with _refusals(checkpoint):
        for file in _weight_files(checkpoint):
            yield from _tensors(file)


def _check_finite(checkpoint: Path, name: str, tensor: torch.Tensor) -> None:
    if tensor.is_floating_point() and tensor.numel():
        with _refusals(checkpoint):  # some formats do not support the query
            low, high = tensor.detach().aminmax()  # NaN anywhere makes both NaN
        if not bool(torch.isfinite(low) & torch.isfinite(high)):
            raise BadCheckpoint(f"{checkpoint.name}: {name} holds numbers that are not finite")


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
    """Turn whatever the libraries raise on a bad folder into `BadCheckpoint`."""
    try:
        yield
    except SafetensorError as error:
        raise BadCheckpoint(f"{folder.name}: a safetensors file is cut short or damaged") from error
    except _LIBRARY_ERRORS as error:
        if is_out_of_memory(error):
            raise OutOfMemory(f"{folder.name}: the model does not fit into this machine's memory") from error
        raise BadCheckpoint(f"{folder.name}: not a checkpoint this engine can run ({type(error).__name__})") from error


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error comes from the allocator, on a GPU or on the CPU (which has no error class of its own)."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(words in str(error) for words in _NO_MEMORY)
