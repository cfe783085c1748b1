"""States, proofs of one completion, margins and the published vectors, for tests of both checks."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from roles.inference.engine import Prefill
from roles.inference.sampling import SamplingSettings
from roles.toploc.proof import build_proofs
from roles.toploc.readings import Sampled, read_tokens
from roles.toploc.sampling_check import Margins
from roles.toploc.verify import ProofStatistics, verify_proofs

VECTORS = Path(__file__).parents[3] / "vectors" / "toploc-0.1.6-public.json"


@dataclass(frozen=True, slots=True, eq=False)
class VectorChunk:
    """One record of the reference library and the states it covers."""

    name: str
    topk: int
    states: torch.Tensor
    noisy: torch.Tensor
    proof: bytes
    same: tuple[float, ...]
    with_noise: tuple[float, ...]


def make_states(tokens: int = 40, hidden: int = 128, seed: int = 0) -> torch.Tensor:
    """Random bfloat16 states `[tokens, hidden]`."""
    return torch.randn(tokens, hidden, generator=torch.Generator().manual_seed(seed)).to(torch.bfloat16)


def build_proof(states: torch.Tensor, **numbers: Any) -> bytes:
    """The proof of one completion."""
    return build_proofs([states], **numbers)[0]


def verify_proof(states: torch.Tensor, proof: bytes, **numbers: Any) -> list[ProofStatistics]:
    """The statistics of one completion's chunks."""
    return verify_proofs([(states, proof)], **numbers)[0]


def margins(logits: npt.NDArray[np.float32], tokens: Sequence[int], seed: int, settings: SamplingSettings) -> Margins:
    """How far each token is from being the seeded choice, given these logits."""
    prefill = Prefill(torch.from_numpy(logits), lambda states: states)
    sampled = Sampled(tokens, [seed] * len(tokens), range(len(tokens)))
    return read_tokens([prefill], [sampled], settings, vocabulary=logits.shape[-1])[0].margins


def load_vector_chunks() -> list[VectorChunk]:
    return [chunk for vector in json.loads(VECTORS.read_text()) for chunk in _chunks(vector)]


def _chunks(vector: dict[str, Any]) -> Iterator[VectorChunk]:
    states, noisy = (_tensor(vector[key], vector["hidden_size"]) for key in ("activations_b64", "noisy_b64"))
    for number, (start, stop) in enumerate(_spans(vector)):
        yield VectorChunk(
            name=f"{vector['name']}-{number}",
            topk=vector["topk"],
            states=states[start:stop],
            noisy=noisy[start:stop],
            proof=base64.b64decode(vector["proofs_b64"][number]),
            same=tuple(vector["verify_same"][number]),
            with_noise=tuple(vector["verify_noisy"][number]),
        )


def _spans(vector: dict[str, Any]) -> list[tuple[int, int]]:
    """The library chunks a *list* of tensors whose first entry is the whole prefill. When the prefill is skipped it
    gets no record of its own; the first chunk then contains it and 31 tokens."""
    prefill, tokens, chunk = vector["prefill_tokens"], vector["output_tokens"], vector["decode_batching_size"]
    if vector["skip_prefill"]:
        edges = [0, *(prefill - 1 + i for i in range(chunk, tokens + 1, chunk)), prefill + tokens]
    else:
        edges = [0, prefill, *(prefill + i for i in range(chunk, tokens, chunk)), prefill + tokens]
    return list(pairwise(edges))


def _tensor(text: str, hidden: int) -> torch.Tensor:
    return torch.frombuffer(bytearray(base64.b64decode(text)), dtype=torch.bfloat16).view(-1, hidden)
