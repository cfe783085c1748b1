"""Several ranks, one of which decides: the others repeat its calls.

A call travels as JSON bytes over the process group, so all ranks make the same collectives in the same order. All ranks
are one operator's own machines.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist

from roles.rl.calls import perform, refusal_of
from roles.rl.learner import Learner
from roles.rl.metrics import StepMetrics
from roles.rl.ranks import Ranks

CLOSE: Mapping[str, Any] = {"call": "close"}


def lead(learner: Learner, message: Mapping[str, Any]) -> StepMetrics | None:
    """Rank 0: send a call to the other ranks, then make it. Raises what the learner raises."""
    if learner.ranks.world > 1:
        _send(learner.ranks, json.dumps(message).encode())
    return perform(learner, message)


def dismiss(learner: Learner) -> None:
    """Rank 0: let the other ranks end. Call it once, as the last call."""
    if learner.ranks.world > 1:
        _send(learner.ranks, json.dumps(CLOSE).encode())
    learner.ranks.leave()


def follow(learner: Learner) -> None:
    """Any other rank: repeat rank 0's calls until it dismisses us. Raises errors of this rank alone."""
    while (message := json.loads(_receive(learner.ranks))) != CLOSE:
        try:
            perform(learner, message)
        except Exception as error:
            if refusal_of(error) is None:
                raise
    learner.ranks.leave()


def _send(ranks: Ranks, message: bytes) -> None:
    dist.broadcast(torch.tensor([len(message)], device=ranks.device), src=0)
    dist.broadcast(torch.frombuffer(bytearray(message), dtype=torch.uint8).to(ranks.device), src=0)


def _receive(ranks: Ranks) -> bytes:
    length = torch.zeros(1, dtype=torch.int64, device=ranks.device)
    dist.broadcast(length, src=0)
    message = torch.empty(int(length.item()), dtype=torch.uint8, device=ranks.device)
    dist.broadcast(message, src=0)
    return message.cpu().numpy().tobytes()
