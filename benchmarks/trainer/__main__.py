"""A learner update compared with the same update by TRL's `GRPOTrainer`: tokens/s, losses, memory.

Both get the same model in fp32, the same completions (with lengths distributed like rollouts'), advantages
and old log-probabilities, the same two-sided loss over all tokens, clipping and AdamW, each in processes of
its own that take turns. `--peer` is a Python that has trl; without it only our figures are printed. The
losses of both must agree to 1e-4.

python -m benchmarks.trainer [--quick] [--peer PYTHON] [--model DIRECTORY] [--rounds N] [--threads N]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.command import BenchmarkError, count, finish, model_folder, python_with, run
from benchmarks.trainer.case import Case, draw_lines

Said = dict[str, Any]
SHAPE = {
    "vocab_size": 32_000,
    "hidden_size": 384,
    "intermediate_size": 1024,
    "num_hidden_layers": 8,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 2048,
    "pad_token_id": 0,
    "bos_token_id": None,
    "eos_token_id": 1,
    "tie_word_embeddings": True,
}
"""A Llama of 25 million parameters."""
EQUAL = 1e-4


def write_random_model(folder: Path) -> Path:
    """A model with random weights."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    model: Any = LlamaForCausalLM(LlamaConfig(**SHAPE))
    model.save_pretrained(folder)
    return folder


def ask(command: list[str]) -> Said:
    """One side's answer: its last line. Raises BenchmarkError, after what it said."""
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), "TOKENIZERS_PARALLELISM": "false"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode:
        sys.stderr.write(done.stderr[-4000:])
        raise BenchmarkError(f"`{command[0]}` ended with code {done.returncode}; what it said is above")
    lines = done.stdout.strip().splitlines()
    answer: Said = json.loads(lines[-1]) if lines else {}
    return answer


def summarise(rounds: Sequence[Said], tokens: int) -> dict[str, float]:
    """Seconds are the median over every update except each process's first. Memory is what the
    updates add to the loaded model."""
    updates = [update for said in rounds for update in (said["updates"][1:] or said["updates"])]
    seconds = statistics.median(update["seconds"] for update in updates)
    return {
        "worked": statistics.median(update["worked"] for update in updates),
        "tokens_per_second": tokens / seconds,
        "seconds": seconds,
        "peak_mib": max(said["peak_mib"] for said in rounds),
        "added_mib": max(said["peak_mib"] - said["loaded_mib"] for said in rounds),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print the table and the JSON line. Returns 1 when the losses do not agree."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.trainer", description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="a small batch, one round")
    parser.add_argument("--peer", type=python_with("trl"), help="a Python that has trl")
    parser.add_argument("--model", type=model_folder, help="a checkpoint folder instead of a random model")
    parser.add_argument("--rounds", type=count)
    parser.add_argument("--threads", type=count, default=os.cpu_count() or 1)
    options = parser.parse_args(arguments)
    completions, longest, steps = (8, 96, 2) if options.quick else (32, 384, 3)
    rounds = options.rounds or (1 if options.quick else 3)
    with tempfile.TemporaryDirectory(prefix="intellect-benchmark-") as name:
        folder = Path(name)
        model = options.model or write_random_model(folder / "model")
        vocabulary = json.loads((model / "config.json").read_text())["vocab_size"]
        lines = draw_lines(count=completions, vocabulary=vocabulary, longest=longest)
        path = folder / "case.json"
        Case(str(model.resolve()), lines, rows=4, steps=steps, threads=options.threads).save(path)
        own = [sys.executable, "-m", "benchmarks.trainer.own", str(path)]
        ask([*own, "--score"])
        peer = [options.peer, str(Path(__file__).with_name("trl_peer.py")), str(path)] if options.peer else None
        ours: list[Said] = []
        theirs: list[Said] = []
        for _ in range(rounds):
            ours.append(ask(own))
            if peer:
                theirs.append(ask(peer))
    return report(ours, theirs, tokens=sum(len(line.completion) for line in lines), options=options)


def report(ours: list[Said], theirs: list[Said], *, tokens: int, options: argparse.Namespace) -> int:
    """Print both sides next to each other."""
    figures = {"ours": summarise(ours, tokens)} | ({"trl": summarise(theirs, tokens)} if theirs else {})
    print(f"{'':22}" + "".join(f"{name:>12}" for name in figures))
    for text, key in (
        ("tokens/s", "tokens_per_second"),
        ("seconds an update", "seconds"),
        ("of processor time", "worked"),
        ("peak memory, MiB", "peak_mib"),
        ("of it the updates'", "added_mib"),
    ):
        print(f"{text:22}" + "".join(f"{side[key]:12.2f}" for side in figures.values()))
    apart = 0.0
    if theirs:
        pairs = list(zip(ours[0]["updates"], theirs[0]["updates"], strict=True))
        apart = max(abs(a["loss"] - b["loss"]) for a, b in pairs)
        print(
            f"losses: ours {[round(a['loss'], 6) for a, _ in pairs]}, theirs {[round(b['loss'], 6) for _, b in pairs]}"
        )
        print(
            f"gradient norms: {[round(a['grad_norm'], 5) for a, _ in pairs]}, {[round(b['grad_norm'], 5) for _, b in pairs]}"
        )
        ratio = figures["ours"]["tokens_per_second"] / figures["trl"]["tokens_per_second"]
        print(f"speed {ratio:.2f} x, losses apart by {apart:.1e} at most")
    finish("trainer", tokens=tokens, threads=options.threads, loss_apart=apart, **figures)
    return 1 if apart > EQUAL else 0


if __name__ == "__main__":
    run(main)
