"""How honest nodes may differ: kernel, batch, threads, engine. A run pins its dtype, so other dtypes
are measured but not fitted."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib.util import find_spec

from node.engines import EngineKind
from node.errors import UsageError
from roles.spec import ModelSpec

Build = tuple[EngineKind, str, str]
"""Engine, dtype and kernel."""


@dataclass(frozen=True, slots=True)
class Environment:
    """How a prover runs. `rows` are generated together; 0 means those of one submission. `threads` 0 means PyTorch's
    default. An environment that is not `fitted` is only reported."""

    name: str
    engine: EngineKind
    dtype: str
    attention: str
    rows: int = 0
    threads: int = 0
    fitted: bool = True

    @property
    def build(self) -> Build:
        """Environments with the same build can share an engine."""
        return self.engine, self.dtype, self.attention


def environments_for(model: ModelSpec, *, rows: int) -> list[Environment]:
    """The environments to try for a run whose submissions have `rows` rows; the first is the one the spec pins.
    Includes vLLM where it is installed, because each node chooses its own engine."""
    pinned = Environment("pinned", model.engine, model.dtype, model.attention)
    other_kernel = "eager" if model.attention == "sdpa" else "sdpa"
    other_dtype = "bfloat16" if model.dtype == "float32" else "float32"
    vllm = [replace(pinned, name="vllm", engine="vllm", rows=4 * rows)] if find_spec("vllm") else []
    return [
        pinned,
        replace(pinned, name="alone", rows=1),
        replace(pinned, name="crowded", rows=4 * rows),
        replace(pinned, name="one-thread", threads=1),
        replace(pinned, name=other_kernel, attention=other_kernel),
        *vllm,
        replace(pinned, name=other_dtype, dtype=other_dtype, fitted=False),
    ]


def chosen(environments: list[Environment], names: str | None, *, quick: bool) -> list[Environment]:
    """The requested environments, by name. Raises UsageError."""
    known = {each.name: each for each in environments}
    if names is None:
        return (
            [each for each in environments if each.name in ("pinned", "alone", "eager", "sdpa")]
            if quick
            else environments
        )
    wanted = [name.strip() for name in names.split(",") if name.strip()]
    for name in wanted:
        if name not in known:
            raise UsageError(f"--environments: there is no {name[:64]!r}; there are {', '.join(known)}")
    return [known[name] for name in dict.fromkeys(wanted)]


@contextmanager
def threads(count: int) -> Iterator[None]:
    """Run PyTorch with this many threads inside the block; 0 leaves the number unchanged."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(count or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)
