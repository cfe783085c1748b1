"""Log-probabilities computed in chunks: the same values and gradients as all at once, in a fraction of the memory."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor

from roles.rl.head import score_hidden

FEW_BYTES = 4 * 50 * 3  # three rows of a vocabulary of 50


def make_inputs(rows: int = 11, width: int = 8, vocabulary: int = 50) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)
    hidden = torch.randn(rows, width, generator=generator).requires_grad_()
    weight = torch.randn(vocabulary, width, generator=generator).requires_grad_()
    return hidden, weight, torch.randint(vocabulary, (rows,), generator=generator)


@pytest.mark.parametrize("softcap", [None, 3.0])
@pytest.mark.parametrize("entropy_gradient", [False, True])
def test_score_hidden__chunks_give_what_the_whole_gives(softcap: float | None, entropy_gradient: bool) -> None:
    hidden, weight, targets = make_inputs()
    found = []
    for logit_bytes in (FEW_BYTES, 10**9):
        logprobs, entropy = score_hidden(
            hidden,
            weight,
            targets,
            temperature=0.6,
            softcap=softcap,
            entropy_gradient=entropy_gradient,
            logit_bytes=logit_bytes,
        )
        assert entropy.requires_grad is entropy_gradient
        value = (logprobs * torch.arange(11.0)).sum() + (entropy.square().sum() if entropy_gradient else 0)
        found.append((logprobs, entropy, *torch.autograd.grad(value, [hidden, weight])))
    for chunked, whole in zip(*found, strict=True):
        torch.testing.assert_close(chunked, whole, rtol=1e-4, atol=1e-5)


def test_score_hidden__no_gradient_is_kept_where_none_is_wanted() -> None:
    hidden, weight, targets = make_inputs()
    with torch.no_grad():
        logprobs, _ = score_hidden(hidden, weight, targets, temperature=1.0, logit_bytes=FEW_BYTES)
    assert not logprobs.requires_grad


MEASURE = """
import resource, torch
from roles.rl.head import score_hidden
torch.set_num_threads(1)
hidden = torch.randn(1024, 16, requires_grad=True)
weight = torch.randn(150_000, 16, requires_grad=True)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
scores, _ = score_hidden(hidden, weight, torch.zeros(1024, dtype=torch.int64), temperature=1.0)
scores.sum().backward()
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
"""


@pytest.mark.slow
def test_score_hidden__a_vocabulary_of_150_000_does_not_set_the_memory() -> None:
    """The logits of 1,024 tokens alone would be 586 MiB, once."""
    done = subprocess.run([sys.executable, "-c", MEASURE], cwd=Path.cwd(), capture_output=True, text=True, check=True)
    assert int(done.stdout) < 350, f"{done.stdout} MiB"
