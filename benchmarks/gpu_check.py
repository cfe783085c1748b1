"""Everything that needs a GPU, tested in one go in under 8 minutes: kernels, FSDP2 in bf16, a
training step, ranks, proofs, vLLM.

Each part is a process of its own with a time limit, so one that fails or hangs affects only itself. Without a
GPU, the parts that a CPU can do run there on a small scale, and the others say why they were skipped. Exit
status 1 when a part failed.

python -m benchmarks.gpu_check [--part NAME] [--seconds 460] [--model DIRECTORY]
"""

from __future__ import annotations

import argparse
import gc
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import torch

from benchmarks.command import finish, model_folder, run

Found = dict[str, Any]
POLICY = Path(__file__).parents[1] / "roles" / "rl" / "default_policy"
ON_GPU = torch.cuda.is_available()
DEVICE = "cuda" if ON_GPU else "cpu"
CLOSE = 0.02
"""Accepted difference in nats between a bf16 loss on a GPU and the fp32 loss on its CPU, for
a model with random weights."""


class NotHere(Exception):
    """Raised with the reason why a part cannot run on this machine."""


def device(_: Path) -> Found:
    """Describe the device."""
    found: Found = {"torch": torch.__version__, "cuda": torch.version.cuda, "gpus": torch.cuda.device_count()}
    if not ON_GPU:
        raise NotHere("no GPU: the other parts run small, on the CPU")
    properties = torch.cuda.get_device_properties(0)
    return found | {
        "name": properties.name,
        "memory_gib": round(properties.total_memory / 2**30, 1),
        "capability": f"{properties.major}.{properties.minor}",
    }


def kernels(_: Path) -> Found:
    """Packed attention in half precision, also with shared prompts, against each row alone in
    fp32: outputs, gradients, time."""
    from roles.rl import attention
    from roles.rl.attention import attend, packing_of

    assert not ON_GPU or attention._varlen is not None, "this PyTorch has no variable-length attention with windows"
    lengths = [700, 1, 33, 1500, 1862] if ON_GPU else [70, 1, 33, 150, 40]
    bounds = [0, *torch.tensor(lengths).cumsum(0).tolist()]
    packing = packing_of(bounds, torch.device(DEVICE), (None, 0, 0, None, 3))
    nobody = torch.nn.Identity()
    found: Found = {"tokens": bounds[-1]}
    for window in (None, 64):
        torch.manual_seed(0)
        whole = [torch.randn(1, heads, bounds[-1], 64, device=DEVICE) for heads in (8, 2, 2)]
        outputs: list[torch.Tensor] = []
        slopes: list[torch.Tensor] = []
        for dtype in (torch.float32, torch.bfloat16):
            inputs = [tensor.detach().clone().to(dtype).requires_grad_() for tensor in whole]
            query, key, value = inputs
            mixed, _none = attend(nobody, query, key, value, None, sliding_window=window, **packing)
            torch.autograd.backward(mixed.float().square().sum())
            outputs.append(mixed.detach().float())
            slopes.append(torch.cat([tensor.grad.float().flatten() for tensor in inputs if tensor.grad is not None]))
        apart = [float((a - b).abs().max() / a.abs().max()) for a, b in (outputs, slopes)]
        assert max(apart) < 0.05, f"window {window}: outputs and gradients apart by {apart}"
        found[f"apart_window_{window}"] = [round(value, 4) for value in apart]
    query, key, value = (tensor.to(torch.bfloat16) for tensor in whole)
    found["packed_ms"] = timed(lambda: attend(nobody, query, key, value, None, **packing))
    return found


def timed(work: Callable[[], object], times: int = 10) -> float:
    """Milliseconds of one call, after a warm-up."""
    work()
    wait()
    began = time.perf_counter()
    for _ in range(times):
        work()
    wait()
    return round(1000 * (time.perf_counter() - began) / times, 3)


def wait() -> None:
    """Wait until the device has finished its work."""
    if ON_GPU:
        torch.cuda.synchronize()


def llama(folder: Path, *, hidden: int, layers: int, vocabulary: int) -> Path:
    """A model with random weights."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=hidden,
        intermediate_size=hidden * 4,
        num_hidden_layers=layers,
        num_attention_heads=hidden // 64,
        num_key_value_heads=max(1, hidden // 256),
        max_position_embeddings=8192,
        tie_word_embeddings=True,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder


def groups(*, count: int, longest: int, vocabulary: int) -> list[Any]:
    """Rollout groups of random tokens."""
    from benchmarks.trainer.case import draw_lines
    from roles.rl.batch import TrainingGroup

    lines = draw_lines(count=count * 8, vocabulary=vocabulary, longest=longest)
    return [
        TrainingGroup(
            prompt=own[0].prompt,
            completions=tuple(line.completion for line in own),
            rewards=tuple(float(number % 2) for number in range(8)),
            policy_step=0,
            submission="00" * 32,
        )
        for own in (lines[start : start + 8] for start in range(0, len(lines), 8))
    ]


def fsdp(folder: Path) -> Found:
    """FSDP2 with bf16 parameters and fp32 reductions on the device, against fp32 on the
    CPU: the loss of the same step."""
    from dataclasses import replace

    from roles.rl.learner import Learner
    from roles.rl.settings import GrpoSettings

    base = llama(folder / "small", hidden=256, layers=4, vocabulary=4096)
    settings = GrpoSettings(optimizer_steps=1, learning_rate=1e-6, entropy_coef=0.01)
    batch = groups(count=2, longest=128, vocabulary=4096)
    exact = Learner(base, settings, device="cpu").step(batch, 1)
    learner = Learner(base, settings, device=DEVICE)
    found = learner.step(batch, 1)
    saved = replace(settings, checkpoint_activations=True)
    again = Learner(base, saved, device=DEVICE).step(batch, 1)
    assert abs(found.loss - exact.loss) < CLOSE, f"loss {found.loss} on {DEVICE}, {exact.loss} in fp32 on the CPU"
    assert abs(found.entropy - exact.entropy) < CLOSE
    assert abs(again.grad_norm - found.grad_norm) < 0.02 * found.grad_norm
    learner.save_state(folder / "state")
    learner.load_state(folder / "state")
    learner.save_weights(folder / "published")
    return {
        "loss": found.loss,
        "loss_fp32_cpu": exact.loss,
        "mismatch": found.mismatch,
        "grad_norms": [exact.grad_norm, found.grad_norm, again.grad_norm],
        "sharded": learner.ranks.mesh is not None,
    }


def step(folder: Path) -> Found:
    """Speed and memory of the trainer: half a billion parameters and a vocabulary of 150,000 on a GPU."""
    from roles.rl.learner import Learner
    from roles.rl.settings import GrpoSettings

    hidden, layers, vocabulary, count, longest = (
        (1024, 24, 150_000, 8, 2048) if ON_GPU else (128, 2, 2000, 1, 64)
    )  # fmt: skip
    base = llama(folder / "large", hidden=hidden, layers=layers, vocabulary=vocabulary)
    parameters = 0
    found: Found = {}
    for saving in (False, True):
        settings = GrpoSettings(
            optimizer_steps=1,
            learning_rate=1e-6,
            kl_coef=0.0,
            micro_tokens=16_384,
            checkpoint_activations=saving,
        )
        learner = Learner(base, settings, device=DEVICE)
        parameters = sum(parameter.numel() for parameter in learner._model.parameters())
        batch = groups(count=count, longest=longest, vocabulary=vocabulary)
        learner.step(batch, 1)
        if ON_GPU:
            torch.cuda.reset_peak_memory_stats()
        metrics = learner.step(batch, 2)
        passed = sum(len(group.prompt) + len(completion) for group in batch for completion in group.completions)
        name = "checkpointed" if saving else "plain"
        found[name] = {
            "tokens_per_second": round(passed / metrics.seconds),
            "tflops": round(8 * parameters * passed / metrics.seconds / 1e12, 2),  # includes the old log-probabilities
            "peak_gib": round(torch.cuda.max_memory_allocated() / 2**30, 2) if ON_GPU else None,
        }
        del learner, metrics  # a reference cycle, otherwise counted as the next one's memory
        gc.collect()
        if ON_GPU:
            torch.cuda.empty_cache()
    return {"parameters": parameters, **found}


def ranks(folder: Path) -> Found:
    """One rank per GPU (two on a CPU): a step, its state in shards, and the step repeated from that state."""
    from roles.rl.ranked import RankedLearner
    from roles.rl.settings import GrpoSettings

    count = torch.cuda.device_count() if ON_GPU else 2
    settings = GrpoSettings(optimizer_steps=1)
    batch = groups(count=2, longest=32, vocabulary=20)
    began = time.perf_counter()
    made = RankedLearner(POLICY, settings, ranks=count, log=folder / "ranks.log", device=DEVICE, threads=1)
    with closing(made) as learner:
        ready = time.perf_counter() - began
        learner.step(batch, 1)
        learner.save_state(folder / "state")
        first = learner.step(batch, 2)
        learner.load_state(folder / "state")
        second = learner.step(batch, 2)
    assert abs(first.loss - second.loss) < 1e-4, (first.loss, second.loss)
    return {"ranks": count, "seconds_to_start": round(ready, 1), "losses": [first.loss, second.loss]}


def proofs(folder: Path) -> Found:
    """The embedded engine on the device: rollouts, TOPLOC proofs, and their verification by a prefill, in bf16."""
    from roles.inference.transformers_engine import TransformersEngine

    return prove_and_check(folder, *[TransformersEngine(device=DEVICE, dtype=torch.bfloat16) for _ in range(2)])


def vllm(folder: Path) -> Found:
    """vLLM as a worker, the embedded engine as its validator, in bf16."""
    if importlib.util.find_spec("vllm") is None:
        raise NotHere("vllm is not installed in this Python")
    from roles.inference.transformers_engine import TransformersEngine
    from roles.inference.vllm_engine import VllmEngine

    worker = VllmEngine(device=DEVICE, dtype=torch.bfloat16)
    return prove_and_check(folder, worker, TransformersEngine(device=DEVICE, dtype=torch.bfloat16))


def prove_and_check(folder: Path, worker: Any, validator: Any) -> Found:
    """How an honest worker's proofs look to a validator with another engine."""
    from roles.inference.engine import Request
    from roles.inference.sampling import SamplingSettings
    from roles.spec import CheckSpec
    from roles.toploc.observing import observe, prove
    from roles.toploc.verify import worst

    settings = SamplingSettings(temperature=1.0, top_p=1.0, top_k=0, max_tokens=44)
    for engine in (worker, validator):
        engine.load(MODEL)
    prompts = [worker.encode(text) for text in ("1+2=", "12+30=", "1234+5678=")]  # padded, and one shared
    requests = [Request(prompts[seed % 3], seed) for seed in range(1, 65)]
    prove(worker, requests[:2], settings)
    began = time.perf_counter()
    proven = prove(worker, requests, settings)
    made = time.perf_counter() - began
    began = time.perf_counter()
    seen = observe(validator, proven, settings)
    checked = time.perf_counter() - began
    said = worst([chunk for chunks in seen.chunks for chunk in chunks])
    tokens = sum(len(each.output) for each in proven)
    margin = sum(float(part.clip(0, 5).sum()) for part in seen.margins) / tokens
    fraud = CheckSpec().fraud  # bf16 on one machine is far below this
    assert said.exponent_mismatches <= fraud.exponent_mismatches, said
    assert 1000 * said.mantissa_mean <= fraud.mantissa_mean, said
    assert 1000 * margin <= fraud.margin_mean, margin
    swap_and_compare(folder / "next", worker, validator, (proven[0].prompt, proven[0].output))
    return {
        "tokens": tokens,
        "tokens_per_second": round(tokens / made),
        "checked_tokens_per_second": round(tokens / checked),
        "worst": [said.exponent_mismatches, said.mantissa_mean, said.mantissa_median],
        "margin_mean": round(margin, 5),
    }


def swap_and_compare(changed: Path, worker: Any, validator: Any, pair: Any) -> None:
    """Both load other weights in place, and agree on the resulting completion."""
    from safetensors.torch import load_file, save_file

    before = worker.prefill([pair])[0].states.float().cpu()
    shutil.copytree(MODEL, changed)
    for file in changed.glob("*.safetensors"):
        save_file({name: tensor * 1.05 for name, tensor in load_file(file).items()}, file, metadata={"format": "pt"})
    for engine in (worker, validator):
        engine.load(changed)
    made, checked = (engine.prefill([pair])[0].states.float().cpu() for engine in (worker, validator))
    moved, apart = float((made - before).norm() / before.norm()), float((made - checked).norm() / checked.norm())
    assert moved > 0.01, f"weights in place: moved by {moved}"
    assert apart < 0.05, f"weights in place: apart by {apart}"


PARTS: Mapping[str, Callable[[Path], Found]] = {
    "device": device,
    "kernels": kernels,
    "fsdp": fsdp,
    "step": step,
    "ranks": ranks,
    "proofs": proofs,
    "vllm": vllm,
}
MODEL = POLICY
MOST: Mapping[str, float] = {"step": 120.0, "vllm": 240.0}
"""Time limits of parts in seconds; 90 for the others."""


def run_part(name: str) -> int:
    """Run one part in this process, and print its figures as a line of JSON."""
    if not ON_GPU:
        torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="intellect-gpu-") as folder:
        try:
            answer: Found = {"ok": PARTS[name](Path(folder))}
        except NotHere as reason:
            answer = {"not_here": str(reason)}
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
    print(json.dumps(answer), flush=True)
    return 0


def start_part(name: str, *, seconds: float, model: Path | None) -> Found:
    """Run one part in a process of its own."""
    command = [sys.executable, "-W", "ignore", "-m", "benchmarks.gpu_check", "--part", name]
    command += ["--model", str(model)] if model else []
    began = time.perf_counter()
    try:
        with tempfile.TemporaryDirectory(prefix="intellect-gpu-") as folder:  # what a killed part leaves goes with it
            space = os.environ | {"TMPDIR": folder}
            done = subprocess.run(command, capture_output=True, text=True, timeout=max(1.0, seconds), env=space)
        lines = done.stdout.strip().splitlines()
        answer: Found = json.loads(lines[-1]) if done.returncode == 0 and lines else {"failed": done.stderr[-1500:]}
    except subprocess.TimeoutExpired as late:
        said = (late.stderr or b"")[-1500:]
        answer = {"failed": f"not done in {max(1.0, seconds):.0f} s: {said.decode(errors='replace')}"}
    return answer | {"seconds": round(time.perf_counter() - began, 1)}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the parts, print each as it ends, then the JSON line."""
    global MODEL
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu_check", description=__doc__.partition("\n")[0])
    parser.add_argument("--part", choices=tuple(PARTS))
    parser.add_argument("--seconds", type=float, default=460.0, help="for everything")
    parser.add_argument(
        "--model", type=model_folder, help="checkpoint of the proofs; the built-in policy when not given"
    )
    options = parser.parse_args(arguments)
    MODEL = options.model or POLICY
    if options.part:
        return run_part(options.part)
    if not ON_GPU:
        print("This machine has no GPU. Done on the CPU: kernels by rows, FSDP2 over gloo ranks, a small step, proofs.")
        print(
            "Not done: variable-length flash attention, bf16 FSDP2 over NCCL, speed and memory on a GPU, vLLM on CUDA."
        )
    ends = time.monotonic() + options.seconds
    found: dict[str, Found] = {}
    for name in PARTS:
        most = (
            MOST.get(name, 90.0) if ON_GPU else options.seconds
        )  # a part that hangs must not use up the time of the others
        found[name] = start_part(name, seconds=min(most, ends - time.monotonic()), model=options.model)
        print(f"{name:10} {json.dumps(found[name])}", flush=True)
    finish("gpu_check", ran_on=DEVICE, **found)  # `device` is one of the parts
    return 1 if any("failed" in part for part in found.values()) else 0


if __name__ == "__main__":
    run(main)
