"""One process of the reference library (PyPI `toploc` 0.1.6), run by an interpreter that has it. Arguments:
the file of states (bfloat16, raw), hidden size, topk, chunk, threads. For each input line "build" or
"verify" it prints the time taken."""

from __future__ import annotations

import json
import sys
import time
from importlib import import_module
from typing import Any


def main(path: str, hidden: int, topk: int, chunk: int, threads: int) -> None:
    """Answer until the input ends."""
    torch: Any = import_module("torch")
    toploc: Any = import_module("toploc")
    torch.set_num_threads(threads)
    with open(path, "rb") as file:
        states = torch.frombuffer(bytearray(file.read()), dtype=torch.bfloat16).view(-1, hidden)
    numbers = {"decode_batching_size": chunk, "topk": topk, "skip_prefill": True}
    rows = list(states.split(1))  # its builder takes a list of tensors, its C++ verifier one tensor
    proofs: list[bytes] = []
    statistics: list[Any] = []
    for line in sys.stdin:
        wall, cpu = time.perf_counter(), time.process_time()
        if line.strip() == "build":
            proofs = toploc.build_proofs_bytes(rows, **numbers)
        else:
            statistics = toploc.verify_proofs_bytes(states, proofs, **numbers)
        said: dict[str, Any] = {"wall": time.perf_counter() - wall, "cpu": time.process_time() - cpu}
        said["proof"] = b"".join(proofs).hex()
        said["statistics"] = [[x.exp_mismatches, x.mant_err_mean, x.mant_err_median] for x in statistics]
        sys.stdout.write(json.dumps(said) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:6]))
