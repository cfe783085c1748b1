"""The policy: a causal language model read from a local checkpoint folder, ready to be scored, trained and sharded.

Knows Hugging Face checkpoints and FSDP2, but nothing of rewards, optimizers or peers.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from transformers import AutoModelForCausalLM
from transformers.utils import logging as transformers_logging

from roles.inference.checkpoint_loading import read_config
from roles.inference.model_sizes import sizes_of
from roles.rl import attention
from roles.rl.scoring import Scorer


class PolicyError(RuntimeError):
    """The checkpoint folder is missing, incomplete, damaged, or not a causal language model."""


def load_policy(checkpoint: Path) -> nn.Module:
    """Read the model in fp32 (the optimizer's precision) into main memory, ready to be trained. Raises PolicyError.

    Only local safetensors files are read: nothing is downloaded, unpickled or executed from the checkpoint.
    """
    if not (checkpoint / "config.json").is_file():
        raise PolicyError(f"{checkpoint} is not a model checkpoint: it has no config.json")
    transformers_logging.disable_progress_bar()  # terminal and log belong to the node
    try:
        loaded: nn.Module = _read(checkpoint).train()
    except Exception as error:  # the loader raises many unrelated kinds, all of which mean the same to the operator
        raise PolicyError(f"cannot load the model in {checkpoint}: {error}") from error
    for name, parameter in loaded.named_parameters():
        if not bool(parameter.isfinite().all()):
            raise PolicyError(f"the model in {checkpoint} is damaged: {name} holds NaN or infinite numbers")
    return loaded


def _read(checkpoint: Path) -> Any:
    model, said = AutoModelForCausalLM.from_pretrained(
        checkpoint,
        config=read_config(checkpoint, attention=attention.NAME),
        dtype=torch.float32,
        local_files_only=True,
        trust_remote_code=False,
        use_safetensors=True,
        attn_implementation=attention.NAME,
        output_loading_info=True,
    )
    absent = sorted((*said["missing_keys"], *said.get("mismatched_keys", ())), key=str)
    if absent:  # the library would initialise them at random
        raise PolicyError(
            f"it lacks {absent[0]} and {len(absent) - 1} more of the tensors that its config.json asks for"
        )
    if more := sorted(said["unexpected_keys"]):  # workers run them, training does not, and they are never published
        raise PolicyError(f"it holds {more[0]} and {len(more) - 1} more tensors that its config.json does not ask for")
    model.config.use_cache = False
    return model


def shard_policy(scorer: Scorer, mesh: DeviceMesh) -> None:
    """Shard the parameters over the mesh with FSDP2, in place: each decoder layer, then the rest. A GPU takes them
    layer by layer, so that it never holds more than its shard and one layer.

    On a GPU the layers compute in bf16 and reduce in fp32; on a CPU everything stays fp32.
    """
    on_gpu = mesh.device_type != "cpu"
    precision = MixedPrecisionPolicy(torch.bfloat16, torch.float32) if on_gpu else MixedPrecisionPolicy()
    for layer in decoder_layers(scorer.model):
        fully_shard(layer, mesh=mesh, mp_policy=precision)
    fully_shard(scorer, mesh=mesh, mp_policy=precision)


def checkpoint_activations(model: Any) -> None:
    """Keep only each layer's input and recompute the rest in the backward pass: a third more
    work for far less memory."""
    if hasattr(model, "activation_checkpointing_enable"):
        model.activation_checkpointing_enable()
    else:  # transformers before 5.20
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})


def published_weights(model: Any, weights: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """The model's tensors under their checkpoint names: some library versions merge a layer's experts when loading."""
    with suppress(ImportError):
        revert = import_module("transformers.core_model_loading").revert_weight_conversion
        reverted: Mapping[str, Tensor] = revert(model, dict(weights))
        return reverted
    return _named_as_before_5(model, weights)


def _named_as_before_5(model: Any, weights: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """For transformers 4, which merges nothing but renames vision modules: regular expressions to prefixes."""
    renamed = getattr(model, "_checkpoint_conversion_mapping", {}).items()
    ours = [(now, re.sub(r"\(.*\)", "", then.lstrip("^"))) for then, now in renamed]

    def back(name: str) -> str:
        return next((then + name.removeprefix(now) for now, then in ours if name.startswith(now)), name)

    return {back(name): tensor for name, tensor in weights.items()}


def decoder_layers(model: nn.Module) -> list[nn.Module]:
    """Return the transformer blocks: the longest list of equal modules, which every causal
    model in transformers has."""
    lists = [list(module) for module in model.modules() if isinstance(module, nn.ModuleList)]
    return max(lists, key=len, default=[])


def longest_sequence(model: Any) -> int | None:
    """Number of positions that the model was made for; None if its configuration does not say."""
    return sizes_of(model.config).positions
