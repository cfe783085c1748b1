"""The policy: a causal language model read from a local checkpoint folder, and the log-probabilities it gives.

Knows Hugging Face checkpoints and FSDP2; knows nothing of rewards, optimizers or peers.
"""

from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from transformers import AutoModelForCausalLM
from transformers.utils import logging as transformers_logging

from roles.rl.batch import MicroBatch
from roles.rl.grpo import compute_entropy

TOKENS_AT_ONCE = 4096  # rows of logits turned into log-probabilities together; bounds the fp32 copies


class PolicyError(RuntimeError):
    """The checkpoint folder is missing, incomplete, or not a causal language model."""


class TokenScores(NamedTuple):
    """What the policy says of each completion token, both (B, C)."""

    logprobs: Tensor
    entropy: Tensor


def load_policy(checkpoint: Path, *, device: torch.device | str = "cpu") -> nn.Module:
    """Read the model in fp32 (the optimizer's precision), ready to be trained. Raises PolicyError.

    Only local safetensors files are read: nothing is downloaded, unpickled or executed from the checkpoint.
    """
    if not (checkpoint / "config.json").is_file():
        raise PolicyError(f"{checkpoint} is not a model checkpoint: it has no config.json")
    transformers_logging.disable_progress_bar()  # the terminal and the log are the node's
    try:
        model = AutoModelForCausalLM.from_pretrained(
            checkpoint, dtype=torch.float32, local_files_only=True, trust_remote_code=False, use_safetensors=True
        )
    except Exception as error:  # the loader raises many unrelated kinds; each means the same to the operator
        raise PolicyError(f"cannot load the model in {checkpoint}: {error}") from error
    model.config.use_cache = False
    loaded: nn.Module = model.to(device).train()
    return loaded


def shard_policy(model: nn.Module, mesh: DeviceMesh) -> None:
    """Split the parameters over the mesh with FSDP2, in place: each decoder layer, then the rest.

    On a GPU the layers compute in bf16 and reduce in fp32; on a CPU everything stays fp32.
    """
    on_gpu = mesh.device_type != "cpu"
    precision = MixedPrecisionPolicy(torch.bfloat16, torch.float32) if on_gpu else MixedPrecisionPolicy()
    for layer in decoder_layers(model):
        fully_shard(layer, mesh=mesh, mp_policy=precision)
    fully_shard(model, mesh=mesh, mp_policy=precision)


def decoder_layers(model: nn.Module) -> list[nn.Module]:
    """Return the transformer blocks: the longest list of equal modules, as every causal model of transformers has."""
    lists = [list(module) for module in model.modules() if isinstance(module, nn.ModuleList)]
    return max(lists, key=len, default=[])


def score_tokens(model: nn.Module, batch: MicroBatch, *, temperature: float, entropy_gradient: bool) -> TokenScores:
    """Run the policy over one micro-batch and score its completion tokens at the sampling temperature.

    Only the logits that predict a completion token are computed: (B, C, V), not (B, T, V).
    """
    kept = batch.targets.shape[1] + 1
    output = model(
        input_ids=batch.input_ids,
        attention_mask=batch.attention_mask,
        position_ids=batch.position_ids,
        logits_to_keep=kept,
    )
    logits = output.logits[:, :-1].float() / temperature
    flat, targets = logits.flatten(0, 1), batch.targets.flatten()
    parts = [
        _score_chunk(flat[start : start + TOKENS_AT_ONCE], targets[start : start + TOKENS_AT_ONCE], entropy_gradient)
        for start in range(0, len(flat), TOKENS_AT_ONCE)
    ]
    logprobs, entropy = (torch.cat(tensors).view_as(batch.targets) for tensors in zip(*parts, strict=True))
    return TokenScores(logprobs, entropy)


def _score_chunk(logits: Tensor, targets: Tensor, entropy_gradient: bool) -> tuple[Tensor, Tensor]:
    logprobs = logits.gather(-1, targets.unsqueeze(-1)).squeeze(-1) - logits.logsumexp(-1)
    with torch.set_grad_enabled(entropy_gradient and torch.is_grad_enabled()):
        return logprobs, compute_entropy(logits)
