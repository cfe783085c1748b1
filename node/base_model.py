"""The model that a run starts from: a folder with intact files, of a kind that engines can load. Once the spec pins its
files, they must match the spec exactly."""

from __future__ import annotations

import hashlib
import json
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from node.errors import ConfigError, UsageError

if TYPE_CHECKING:
    from node.config import NodeConfig
    from roles.spec import RunSpec

MAX_WEIGHTS_HEADER = 100 * 2**20
"""Bytes; the limit of the safetensors format itself."""
MODEL_SUFFIXES = (".json", ".safetensors", ".txt", ".model", ".jinja")
PLAIN_ARCHITECTURES = ("ForCausalLM", "LMHeadModel")
"""Suffixes of the architecture names of models that read and write text only."""


def default_model() -> Path:
    """Folder of the policy shipped with the program."""
    return Path(str(resources.files("roles.rl").joinpath("default_policy")))


def model_files(model: Path) -> list[dict[str, Any]]:
    """Name, size and SHA-256 of each file of a model folder. Raises ConfigError."""
    if not model.is_dir():
        raise ConfigError(f"the model folder {model} does not exist")
    files = [path for path in sorted(model.iterdir()) if path.suffix in MODEL_SUFFIXES and path.is_file()]
    weights = [path for path in files if path.suffix == ".safetensors"]
    if not weights:
        raise ConfigError(f"the model folder {model} holds no .safetensors file")
    for path in weights:
        _check_weights(path)
    _check_architecture(model / "config.json")
    return [{"name": path.name, "size": path.stat().st_size, "sha256": _sha256(path)} for path in files]


def _check_weights(path: Path) -> None:
    """Check that the file is as long as its header says, so that an incomplete download
    fails here, not in the trainer."""
    try:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            header = json.loads(file.read(length)) if length <= MAX_WEIGHTS_HEADER else {}
        end = max(int(item["data_offsets"][1]) for name, item in header.items() if name != "__metadata__")
        is_whole = path.stat().st_size == 8 + length + end
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError):
        is_whole = False
    if not is_whole:
        raise ConfigError(f"{path} is not a whole safetensors file; fetch the model again")


def _check_architecture(path: Path) -> None:
    """Check that the engine will load the whole model and not just a part of it."""
    try:
        config = json.loads(path.read_text())
        named = list(map(str, config["architectures"]))
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}; a model folder holds its config.json") from error
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ConfigError(f"{path} is not a model's config.json: it names no architectures") from error
    if any(name.endswith(PLAIN_ARCHITECTURES) for name in named):
        return
    loaded = _loaded_as(config) if any(name.endswith("ForConditionalGeneration") for name in named) else None
    if loaded is None:
        raise ConfigError(f"the model of {path} is {', '.join(named)[:80]}: a causal language model is needed")
    if loaded not in named:
        raise ConfigError(
            f"the model of {path} is {', '.join(named)[:80]}, of which a run takes the part that reads and writes text "
            f"({loaded}): intellect-node model import {path.parent} DIR, then --model DIR"
        )


def _loaded_as(config: dict[str, Any]) -> str | None:
    """The causal language model that transformers loads for a model that also takes
    pictures; None where it loads none."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    found = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.get(str(config.get("model_type")))
    return None if found is None else str(found)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def checked_base(config: NodeConfig, spec: RunSpec) -> Path:
    """The base model's folder, checked file for file against the spec. Raises UsageError, ConfigError."""
    base = base_folder(config)
    if differing := differing_files(base, spec):
        raise UsageError(
            f"the model in {base} is not the run's: {', '.join(differing)} differ from the spec: name "
            "the folder of the run's base model by --model"
        )
    return base


def base_folder(config: NodeConfig) -> Path:
    """The folder named in the settings, or that of the built-in policy."""
    return (config.model or default_model()).expanduser()


def differing_files(base: Path, spec: RunSpec) -> list[str]:
    """Names of the spec's files that are missing from the folder or differ. Raises ConfigError."""
    held = {(item["name"], item["sha256"]) for item in model_files(base)}
    return [item.name for item in spec.model.files if (item.name, item.sha256) not in held]
