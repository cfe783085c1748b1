"""The engine that runs a policy on this machine."""

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
    """What is missing where the settings name a GPU, and what to do; None where all is there. Imports PyTorch for a GPU."""
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
    """Before a model is loaded: no other device is taken for one that is missing (TOP-23). Raises ConfigError."""
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
    """An engine without weights yet; numbers are `dtype` (float32, bfloat16 or float16). Imports PyTorch.

    vLLM has attention kernels of its own: `attention` says nothing to it. Raises `InferenceError` when it is not installed,
    ConfigError where the device is not there.
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
    """Give model work so many threads as the settings say, if they do. Imports PyTorch."""
    import torch

    if config.threads:
        torch.set_num_threads(config.threads)


def engine_of(config: NodeConfig, model: ModelSpec) -> Engine:
    """The node's own choice of engine, for a run's model."""
    return build_engine(
        config.device,
        dtype=model.dtype,
        attention=model.attention,
        chat=model.chat,
        engine=config.engine,
        tensor_parallel=config.tensor_parallel,
        gpu_share=config.gpu_share,
    )
