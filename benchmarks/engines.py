"""Tokens per second of the engines, and what proofs and seeded sampling cost beside vLLM's own sampling.

One batch of groups of 8 on one model, with all completions of the same length (the end token is
replaced by one that never occurs):

- transformers: seeded sampling, states and proofs, as a worker has them
- vllm plain: vLLM's own sampling at temperature 1, and its greedy sampling, which draws nothing at all
- vllm: seeded sampling and states (generate), and the proofs after it

vLLM's rows alternate in one process with one model, so that fluctuations of the machine affect both; figures are
medians. vLLM may be in another environment: `--vllm-python`.

python -m benchmarks.engines --model DIR [--quick] [--batch 64] [--tokens 128] [--device cpu] [--dtype bfloat16]
    [--repeats 3] [--vllm-python .venv-vllm/bin/python] [--only transformers|vllm]
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.command import count, finish, has_package, model_folder, python_with, run
from roles.inference.engine import Completion, Engine, Request, SamplingSettings
from roles.inference.transformers_engine import TransformersEngine
from roles.toploc.proof import build_proofs

GROUP = 8
VLLM_PYTHON = Path(".venv-vllm/bin/python")
QUESTIONS = (
    "What is the capital of France?",
    "Explain photosynthesis in one paragraph.",
    "Write a poem about rivers and mountains.",
    "How many legs do 7 spiders have? Think step by step.",
    "Give me a recipe for bread.",
    "What is 12*13?",
    "Why is the sky blue?",
    "Tell me a story about a dragon.",
)
Times = dict[str, list[float]]


class Endless(TransformersEngine):
    """Completions of the maximum length: the last token of a vocabulary is a filler, or rare."""

    @property
    def eos(self) -> int:
        return self.vocabulary - 1


def build_vllm(options: argparse.Namespace) -> Any:
    """The vLLM engine, also with endless completions."""
    from roles.inference.vllm_engine import VllmEngine, VllmSettings

    class EndlessVllm(VllmEngine):
        @property
        def eos(self) -> int:
            return self.vocabulary - 1

    settings = VllmSettings(tensor_parallel=options.tensor_parallel)
    return EndlessVllm(device=options.device, dtype=getattr(torch, options.dtype), settings=settings)


def requests_of(engine: Engine, batch: int) -> list[Request]:
    """Groups of eight, each on one prompt."""
    return [Request(engine.encode(QUESTIONS[i // GROUP % len(QUESTIONS)]), seed=i) for i in range(batch)]


def timed(work: Callable[[], Any]) -> tuple[float, Any]:
    """Duration in seconds, and the result."""
    begun = time.perf_counter()
    result = work()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - begun, result


def measure_own(engine: Engine, requests: Sequence[Request], tokens: int) -> tuple[float, float]:
    """Seconds to generate with seeded sampling and states, and to build the proofs."""
    settings = SamplingSettings(temperature=1.0, top_p=1.0, top_k=0, max_tokens=tokens)
    generating, completions = timed(lambda: engine.generate(requests, settings))
    said: list[Completion] = completions
    proving, _ = timed(lambda: build_proofs([each.states for each in said]))
    return generating, proving


def measure_plain(engine: Any, requests: Sequence[Request], tokens: int, temperature: float) -> float:
    """Seconds of vLLM's own sampling, recording nothing."""
    from vllm import SamplingParams

    wanted = SamplingParams(temperature=temperature, max_tokens=tokens, ignore_eos=True, detokenize=False)
    prompts = [{"prompt_token_ids": list(request.prompt)} for request in requests]
    return timed(lambda: engine._llm.generate(prompts, wanted, use_tqdm=False))[0]


def measure(options: argparse.Namespace, kind: str) -> Times:
    """Seconds of every repeat, by row of the table."""
    engine = (
        Endless(device=options.device, dtype=getattr(torch, options.dtype))
        if kind == "transformers"
        else build_vllm(options)
    )
    engine.load(options.model)
    requests = requests_of(engine, options.batch)
    measure_own(engine, requests, 4)
    times: Times = {}

    def add(name: str, seconds: float) -> None:
        times.setdefault(name, []).append(seconds)

    for _ in range(options.repeats):
        if kind == "vllm":
            add("vllm plain", measure_plain(engine, requests, options.tokens, 1.0))
            add("vllm plain, greedy", measure_plain(engine, requests, options.tokens, 0.0))
        generating, proving = measure_own(engine, requests, options.tokens)
        add(f"{kind} seeded", generating)
        add(f"{kind} seeded, proofs", generating + proving)
    return times


def gather(options: argparse.Namespace) -> Times:
    """Measure both engines, in one process each, one after the other."""
    times: Times = {}
    for kind, python in (("transformers", sys.executable), ("vllm", options.vllm_python)):
        if kind == "vllm" and not has_package(python, "vllm"):
            print(f"vLLM is not installed for {python}: left out (scripts/test-vllm makes .venv-vllm)")
            continue
        passed = [f"--{name.replace('_', '-')}={getattr(options, name)}" for name in PASSED]
        command = [python, "-W", "ignore", "-m", "benchmarks.engines", "--only", kind, *passed]
        output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, timeout=3600).stdout
        times |= json.loads(output.splitlines()[-1])
    return times


def report(times: Times, options: argparse.Namespace) -> dict[str, Any]:
    """Print the table, and return it as one object."""
    tokens = options.batch * options.tokens
    speeds = {name: tokens / statistics.median(seconds) for name, seconds in times.items()}
    steps = {name: statistics.median(seconds) / options.tokens * 1e3 for name, seconds in times.items()}
    own = "vllm seeded, proofs"
    # Each repeat is compared with the adjacent one, so that a slow minute affects both.
    overheads = {
        plain: statistics.median(mine / theirs for mine, theirs in zip(times[own], times[plain], strict=True)) - 1
        for plain in ("vllm plain", "vllm plain, greedy")
        if plain in times
    }
    print(f"{options.batch} completions of {options.tokens} tokens, {options.dtype}, {options.device}")
    print(f"{'':26}{'tokens/s':>10}{'ms a step':>11}")
    for name, speed in speeds.items():
        print(f"{name:26}{speed:10.0f}{steps[name]:11.1f}")
    for plain, overhead in overheads.items():
        print(f"proofs and seeded sampling beside {plain}: {overhead:+.1%}")
    return {
        "batch": options.batch,
        "tokens": options.tokens,
        "tokens_per_second": {name: round(speed, 1) for name, speed in speeds.items()},
        "overhead": {name: round(overhead, 4) for name, overhead in overheads.items()},
        "most_overhead": 0.05,
    }


PASSED = ("model", "batch", "tokens", "device", "dtype", "repeats", "tensor_parallel")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.engines", description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=model_folder, required=True)
    parser.add_argument("--quick", action="store_true", help="16 completions of 16 tokens, once")
    parser.add_argument("--batch", type=count, default=64)
    parser.add_argument("--tokens", type=count, default=128)
    parser.add_argument("--repeats", type=count, default=3)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="bfloat16", choices=("bfloat16", "float32"))
    parser.add_argument("--tensor-parallel", type=count, default=1)
    parser.add_argument("--vllm-python", type=python_with("vllm"), help=f"default {VLLM_PYTHON}, where it is")
    parser.add_argument("--only", choices=("transformers", "vllm"), help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.quick:
        options.batch, options.tokens, options.repeats = 16, 16, 1
    if options.only:
        print(json.dumps(measure(options, options.only)))
        return 0
    options.vllm_python = options.vllm_python or (str(VLLM_PYTHON) if VLLM_PYTHON.exists() else sys.executable)
    finish("engines", **report(gather(options), options))
    return 0


if __name__ == "__main__":
    run(main)
