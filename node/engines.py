"""Builds the engine that runs a policy on this machine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from node.errors import ConfigError
from node.hardware import list_gpus
from roles.requirements import describe_gpus

if TYPE_CHECKING:
    from node.config import NodeConfig
    from roles.inference.engine import Engine
    from roles.spec import ModelSpec

EngineKind = Literal["transformers", "vllm"]


def lacks_device(device: str) -> tuple[str, str] | None:
    """If the settings name a GPU that cannot be used: what is missing, and what to do; otherwise
    None. Imports PyTorch for a GPU."""
    if device == "cpu":
        return None
    import torch

    if not torch.cuda.is_available():
        return (
            f"PyTorch {torch.__version__} sees no GPU (the driver: {describe_gpus(list_gpus())})",
            "install the driver and a PyTorch built for it, or use --device cpu",
        )
    count = torch.cuda.device_count()
    if int(device.partition(":")[2] or 0) >= count:
        return f"there is no {device}", f"use one of {count}, from cuda:0 on, or --device cpu"
    return None


def check_device(device: str) -> None:
    """Check the device before a model is loaded; a missing one is never replaced by another
    (TOP-23). Raises ConfigError."""
    if (missing := lacks_device(device)) is not None:
        raise ConfigError(f"--device {device}: {'; '.join(missing)}")


def build_engine(
    device: str,
    *,
    dtype: str,
    attention: str = "sdpa",
    chat: bool = False,
    engine: EngineKind = "transformers",
    tensor_parallel: int = 1,
    gpu_share: float = 0.85,
) -> Engine:
    """An engine without weights. It computes in `dtype` (float32, bfloat16 or float16). Imports PyTorch.

    vLLM has attention kernels of its own and ignores `attention`. Raises `InferenceError` when it is not installed,
    ConfigError where the device is missing.
    """
    import torch

    check_device(device)
    kind: torch.dtype = getattr(torch, dtype)
    if engine == "vllm":
        from roles.inference.vllm_engine import VllmEngine, VllmSettings

        settings = VllmSettings(tensor_parallel=tensor_parallel, gpu_share=gpu_share)
        return VllmEngine(device=device, dtype=kind, chat=chat, settings=settings)
    from roles.inference.transformers_engine import TransformersEngine

    return TransformersEngine(device=device, dtype=kind, attention=attention, chat=chat)


def set_threads(config: NodeConfig) -> None:
    """Set the number of threads for model work, if the settings give one. Imports PyTorch."""
    import torch

    if config.threads:
        torch.set_num_threads(config.threads)


def engine_of(config: NodeConfig, model: ModelSpec) -> Engine:
    """The node's own choice of engine for a run's model."""
    return build_engine(
        config.device,
        dtype=model.dtype,
        attention=model.attention,
        chat=model.chat,
        engine=config.engine,
        tensor_parallel=config.tensor_parallel,
        gpu_share=config.gpu_share,
    )
