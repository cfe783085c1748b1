"""The processes that train together under torchrun: rank, device and collectives of this one.

With WORLD_SIZE unset or 1 on a CPU every function here does nothing, so the learner's code is the same.
"""

import os
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, distribute_tensor

IDLE_LIMIT = timedelta(days=1)  # ranks wait while rank 0 collects rollouts: half an hour at 32B, more if starved


@dataclass(frozen=True, slots=True)
class Ranks:
    """This process's rank among those that train together."""

    rank: int
    world: int
    device: torch.device
    mesh: DeviceMesh | None  # None when alone

    @property
    def writes(self) -> bool:
        """Whether this process is the one that writes files."""
        return self.rank == 0

    def add(self, values: Tensor) -> Tensor:
        """Return the elementwise sum over all ranks."""
        if self.mesh is not None:
            dist.all_reduce(values)
        return values

    def most(self, value: Tensor) -> Tensor:
        """Return the largest value of any rank."""
        if self.mesh is not None:
            dist.all_reduce(value, op=dist.ReduceOp.MAX)
        return value

    def meet(self) -> None:
        """Wait until every rank is here, so that nobody reads an incomplete file."""
        if self.mesh is not None:
            dist.barrier()

    def leave(self) -> None:
        """Close the process group; no collective may follow."""
        if self.mesh is not None:
            dist.destroy_process_group()


def join_ranks(device: str | None = None) -> Ranks:
    """Join the process group that torchrun describes in the environment, or stay alone. `device` None: a GPU if there
    is one; "cuda": this rank's GPU.

    A single rank on a GPU is a group of its own, so that it too computes in bf16.
    """
    world = int(os.environ.get("WORLD_SIZE", "1"))
    place = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    on_gpu = place.type == "cuda"
    if world <= 1 and not on_gpu:
        return Ranks(0, 1, place, None)
    if on_gpu:
        place = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")) if place.index is None else place.index)
        torch.cuda.set_device(place)
        torch.backends.cuda.enable_cudnn_sdp(False)  # with a mask its gradients were wrong in some versions
    if not dist.is_initialized():
        told: dict[str, Any] = {"device_id": place} if on_gpu else {}  # otherwise a barrier guesses our GPU
        if world <= 1:
            told |= {"store": dist.HashStore(), "rank": 0, "world_size": 1}  # type: ignore[attr-defined]
        dist.init_process_group("nccl" if on_gpu else "gloo", timeout=IDLE_LIMIT, **told)
    mesh = init_device_mesh(place.type, (max(1, world),))
    if on_gpu:
        torch.cuda.set_device(place)  # the mesh may have chosen another for a group of one
    return Ranks(dist.get_rank(), max(1, world), place, mesh)


def full_tensor(tensor: Tensor) -> Tensor:
    """Gather a sharded tensor; a plain one is returned as it is. Every rank must call it."""
    if isinstance(tensor, DTensor):
        gathered: Tensor = tensor.full_tensor()
        return gathered.detach()
    return tensor.detach()


def placed_like(parameter: Tensor, full: Tensor) -> Tensor:
    """Place a tensor like `parameter`: on its device and with its sharding, unless it already is."""
    full = full.to(parameter.device)
    if isinstance(full, DTensor):
        return full
    if isinstance(parameter, DTensor):
        return distribute_tensor(full, parameter.device_mesh, parameter.placements)
    return full
