"""Cost of building and verifying a TOPLOC proof, compared with the reference library and with generating the tokens.

python -m benchmarks.toploc [--quick] [--peer PYTHON] [--model DIR] [--threads N]

Both libraries get the same tensors. `--peer` names an interpreter that has PyPI `toploc==0.1.6`; the two take turns,
and the fastest round of each counts. `--model` names a folder with a real model (SmolLM2-135M-Instruct for the
published figures): a group of 8 completions of 128 tokens is generated, and its proofs are built and verified. Without
it the built-in policy is used. The last line printed is JSON.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.command import BenchmarkError, count, finish, model_folder, python_with, run
from benchmarks.group import Spent, clocked, dtype_of, load_engine
from node.base_model import default_model
from roles.inference.engine import Request, SamplingSettings
from roles.toploc.encoding import ENCODINGS
from roles.toploc.proof import CHUNK, TOPK, build_proofs
from roles.toploc.verify import verify_proofs

SHAPES = ((1000, 5120), (1024, 576))
"""Number of states and their size: the case of the reference library's own bound (100 ms to verify),
and a group on SmolLM2-135M."""
QUICK_SHAPES = ((256, 576),)
PROMPT = "Tell me a long story about a dragon, a river and the people who live beside it."
PEER_NODE = Path(__file__).with_name("peer_node.py")


class Peer:
    """The reference library in a process of its own."""

    def __init__(self, python: str, path: Path, hidden: int, threads: int) -> None:
        numbers = map(str, (hidden, TOPK, CHUNK, threads))
        self._process = subprocess.Popen(
            [python, str(PEER_NODE), str(path), *numbers], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def ask(self, what: str) -> dict[str, Any]:
        """Its figures for one call. Raises BenchmarkError when it does not answer."""
        if self._process.stdin is None or self._process.stdout is None:
            raise BenchmarkError("the peer has no pipes")
        try:
            self._process.stdin.write(what + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            raise BenchmarkError("the peer ended: does that interpreter have toploc==0.1.6 and torch?")
        said: dict[str, Any] = json.loads(line)
        return said

    def stop(self) -> None:
        """End it."""
        self._process.kill()
        self._process.wait()


def compare(tokens: int, hidden: int, *, rounds: int, peer: str | None, threads: int) -> dict[str, object]:
    """Both libraries on the same tensor, in turns."""
    states = torch.randn(tokens, hidden, generator=torch.Generator().manual_seed(0)).to(torch.bfloat16)
    (proof,) = build_proofs([states])
    row: dict[str, object] = {"case": f"{tokens} states of {hidden}"}
    with tempfile.TemporaryDirectory(prefix="toploc-") as folder:
        path = Path(folder) / "states"
        path.write_bytes(states.view(torch.int16).numpy().tobytes())
        other = Peer(peer, path, hidden, threads) if peer else None
        calls: dict[str, Callable[[], object]] = {
            "build": lambda: build_proofs([states]),
            "verify": lambda: verify_proofs([(states, proof)]),
        }
        try:
            for name, call in calls.items():
                ours, theirs = _in_turns(call, other, name, rounds)
                row |= {f"{name}_ms": 1000 * ours.wall, f"{name}_cpu_ms": 1000 * ours.cpu}
                if other and theirs:
                    row |= {f"peer_{name}_ms": 1000 * theirs.wall, f"peer_{name}_cpu_ms": 1000 * theirs.cpu}
                    row |= {f"{name}_times_faster": theirs.wall / ours.wall}
            if other:
                said = other.ask("verify")
                row["same_bytes"] = said["proof"] == proof.hex()
                (found,) = verify_proofs([(states, proof)])
                own = [[x.exponent_mismatches, x.mantissa_mean, x.mantissa_median] for x in found]
                row["same_statistics"] = said["statistics"] == own
        finally:
            if other:
                other.stop()
    return row


def _in_turns(call: Callable[[], object], peer: Peer | None, name: str, rounds: int) -> tuple[Spent, Spent | None]:
    """The fastest round of each; the first round of each is only a warm-up."""
    ours, theirs = [], []
    for _ in range(rounds + 1):
        ours.append(clocked(call))
        if peer:
            said = peer.ask(name)
            theirs.append(Spent(said["wall"], said["cpu"]))
    return _quickest(ours[1:]), _quickest(theirs[1:]) if theirs else None


def _quickest(spent: Sequence[Spent]) -> Spent:
    return Spent(min(item.wall for item in spent), min(item.cpu for item in spent))


def overhead(model: Path, *, rows: int, tokens: int, threads: int) -> dict[str, object]:
    """Proofs of a group compared with its generation, in CPU seconds; both run in this process."""
    engine, encoding = load_engine(model, threads=threads), ENCODINGS[dtype_of(model)]
    requests = [Request(engine.encode(PROMPT), seed) for seed in range(rows)]
    settings = SamplingSettings(temperature=1.0, top_p=1.0, top_k=0, max_tokens=tokens)
    engine.generate(requests[:1], SamplingSettings(temperature=1.0, top_p=1.0, top_k=0, max_tokens=4))
    states: list[torch.Tensor] = []
    generating = clocked(lambda: states.extend(item.states for item in engine.generate(requests, settings)))
    proofs = build_proofs(states, encoding=encoding)
    building = clocked(lambda: build_proofs(states, encoding=encoding), rounds=3)
    verifying = clocked(lambda: verify_proofs(list(zip(states, proofs, strict=True)), encoding=encoding), rounds=3)
    return {
        "case": f"{rows} x {tokens} tokens of {model.name} in {dtype_of(model)}",
        "generate_seconds": generating.wall,
        "generate_cpu_seconds": generating.cpu,
        "build_ms": 1000 * building.wall,
        "verify_ms": 1000 * verifying.wall,
        "bytes_a_token": sum(map(len, proofs)) / (rows * tokens),
        "build_percent_of_generation": building.share_of(generating),
    }


def show(row: dict[str, object]) -> None:
    """One row for people."""
    sys.stdout.write(f"\n{row['case']}\n")
    for name, value in row.items():
        if name != "case":
            sys.stdout.write(f"  {name:28} {f'{value:.3f}' if isinstance(value, float) else value}\n")
    sys.stdout.flush()


def main(options: argparse.Namespace) -> int:
    """Measure and print. Returns 1 when the reference library gives other bytes."""
    torch.set_num_threads(options.threads)
    rounds = 3 if options.quick else 15
    rows = []
    for tokens, hidden in QUICK_SHAPES if options.quick else SHAPES:
        rows.append(compare(tokens, hidden, rounds=rounds, peer=options.peer, threads=options.threads))
        show(rows[-1])
    count, tokens = (2, 16) if options.quick else (8, 128)
    rows.append(overhead(options.model or default_model(), rows=count, tokens=tokens, threads=options.threads))
    show(rows[-1])
    sys.stdout.write("\n")
    finish("toploc", rows=rows)
    return int(any(row.get("same_bytes") is False for row in rows))


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.toploc", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="one small shape, a few tokens")
    parser.add_argument("--peer", type=python_with("toploc"), help="an interpreter that has toploc==0.1.6 and torch")
    parser.add_argument("--model", type=model_folder, help="a model folder; default the built-in policy")
    parser.add_argument("--threads", type=count, default=1, help="of PyTorch, ours and the peer's (default 1)")
    return parser.parse_args()


if __name__ == "__main__":
    run(lambda: main(parse()))
