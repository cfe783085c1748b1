"""A model's sizes from its configuration: vocabulary and positions, also for models that take more than text."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from roles.inference.errors import BadCheckpoint


@dataclass(frozen=True, slots=True)
class Sizes:
    """Sizes of the part that reads and writes text. `positions` None: the configuration does not limit a sequence."""

    vocabulary: int
    positions: int | None


def sizes_of(config: Any) -> Sizes:
    """Sizes from a transformers configuration. Raises BadCheckpoint when it has no vocabulary."""
    text = text_config(config)
    vocabulary, positions = (getattr(text, name, None) for name in ("vocab_size", "max_position_embeddings"))
    if not isinstance(vocabulary, int):
        raise BadCheckpoint("config.json does not tell the model's vocabulary")
    return Sizes(vocabulary, positions if isinstance(positions, int) and positions > 0 else None)


def text_config(config: Any) -> Any:
    """The text part of a transformers configuration; all of it where the model takes nothing but text."""
    return config.get_text_config(decoder=True)


def read_sizes(checkpoint: Path) -> Sizes:
    """Sizes from a checkpoint's config.json, with the model type's defaults for omitted ones. Raises BadCheckpoint."""
    try:
        said = json.loads((checkpoint / "config.json").read_bytes())
        positions = said.get("max_position_embeddings", said.get("n_positions"))  # the latter: GPT-2
        plain = (said.get("vocab_size"), positions)
        if "text_config" not in said and all(isinstance(number, int) for number in plain):
            return Sizes(*plain)  # without the seconds that importing the library takes
        from transformers import AutoConfig

        config = AutoConfig.from_pretrained(checkpoint, local_files_only=True, trust_remote_code=False)
    except Exception as error:  # the library raises many unrelated kinds, all of which mean the same to the operator
        why = str(error).partition("\n")[0][:200]
        raise BadCheckpoint(f"cannot read {checkpoint / 'config.json'}: {why}") from error
    return sizes_of(config)
