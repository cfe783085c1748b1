"""Makes checkpoint folders from a GGUF file, a folder in Hugging Face's format, or random weights.

The result is what a run pins and every engine loads: config.json, tokenizer.json, *.safetensors. Nothing is downloaded.
"""

from __future__ import annotations

import shutil
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dht.disk import sync, sync_files
from node.errors import ConfigError

if TYPE_CHECKING:
    import torch

KINDS = ("llama", "qwen2", "qwen3", "gemma")
SIZES = {"layers": 2, "hidden": 64, "heads": 4, "intermediate": 128}


def find_source(source: str) -> Path:
    """A GGUF file or a checkpoint folder, given as a path or as the name of an installed package that contains a
    GGUF file. Raises ConfigError."""
    path = Path(source).expanduser()
    if path.is_dir() or path.is_file():
        return path
    try:
        files = metadata.files(source) or []
    except (metadata.PackageNotFoundError, ValueError) as error:
        raise ConfigError(f"{source} is neither a file, a folder, nor an installed package") from error
    models = sorted(Path(str(file.locate())) for file in files if file.name.endswith(".gguf"))
    if len(models) != 1:
        raise ConfigError(f"the package {source} holds {len(models)} GGUF files; name the one you mean by its path")
    return models[0]


def import_model(source: Path, out: Path, *, dtype: str) -> int:
    """Write the model in `source` as a checkpoint folder. Returns the number of parameters. Raises ConfigError."""
    folder, options = (source, {}) if source.is_dir() else (source.parent, {"gguf_file": source.name})
    if options:
        _need_gguf()
    model, tokenizer = _load(folder, dtype, options)
    return _write(model, tokenizer, out)


def make_model(out: Path, *, kind: str, tokenizer: Path, seed: int, sizes: dict[str, int]) -> int:
    """Write a model with random weights, for experiments. Returns the number of parameters. Raises ConfigError."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    from roles.inference.checkpoint_loading import load_tokenizer
    from roles.inference.errors import BadCheckpoint

    try:
        words = load_tokenizer(tokenizer)
    except BadCheckpoint as error:
        raise ConfigError(str(error)) from error
    if sizes["hidden"] % sizes["heads"] or min(sizes.values()) < 1:
        raise ConfigError("--hidden must be a multiple of --heads, and every size at least 1")
    config = AutoConfig.for_model(
        kind,
        vocab_size=len(words),
        hidden_size=sizes["hidden"],
        intermediate_size=sizes["intermediate"],
        num_hidden_layers=sizes["layers"],
        num_attention_heads=sizes["heads"],
        num_key_value_heads=sizes["heads"],
        head_dim=sizes["hidden"] // sizes["heads"],
        eos_token_id=words.eos_token_id,
        bos_token_id=words.bos_token_id,
        pad_token_id=words.pad_token_id,
    )
    torch.manual_seed(seed)
    return _write(AutoModelForCausalLM.from_config(config), words, out)


def _load(folder: Path, dtype: str, options: dict[str, str]) -> tuple[Any, Any]:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from roles.inference.checkpoint_loading import read_config

    kind: torch.dtype = getattr(torch, dtype)
    common = {"local_files_only": True, "trust_remote_code": False, **options}
    place = folder / options.get("gguf_file", "")
    try:
        known = {} if options else {"config": read_config(folder, attention="eager")}
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            folder, dtype=kind, output_loading_info=True, **known, **common
        )
        model, report = loaded
        _forget_quantisation(model)
        model, tokenizer = model.to(kind), AutoTokenizer.from_pretrained(folder, **common)
    except Exception as error:  # the libraries may raise anything for a foreign file
        why = str(error).partition("\n")[0][:200]
        raise ConfigError(f"{place} cannot be read as a model: {why}") from error
    if missing := sorted(map(str, report["missing_keys"])):  # the library fills them with random numbers and only warns
        raise ConfigError(f"{place} lacks weights of the model: {', '.join(missing)[:200]}; fetch it again")
    return model, tokenizer


def _forget_quantisation(model: Any) -> None:
    """Remove the quantisation settings. A GGUF file's weights were unpacked on reading, but the library
    still treats them as packed."""
    model.hf_quantizer = None
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config


def _write(model: Any, tokenizer: Any, out: Path) -> int:
    """Write the folder completely, or not at all."""
    if out.exists():
        raise ConfigError(f"{out} exists already; name another folder")
    part = out.with_name(f".{out.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    try:
        model.save_pretrained(part, safe_serialization=True)
        tokenizer.save_pretrained(part)
        sync_files(part)
        part.rename(out)
        sync(out.parent)
    except OSError as error:
        shutil.rmtree(part, ignore_errors=True)
        raise ConfigError(f"cannot write {out}: {error.strerror}") from error
    return sum(parameter.numel() for parameter in model.parameters())


def _need_gguf() -> None:
    for package in ("gguf", "accelerate"):
        try:
            metadata.version(package)
        except metadata.PackageNotFoundError as error:
            raise ConfigError(f"GGUF files need the package {package}: pip install 'intellect-node[gguf]'") from error
