"""Runs beside the model inside vLLM: seeded sampling as a logits processor, and the last hidden states it drew from.

For each step vLLM's V1 model runner calls `update_state` (which request is in which row), the model, the model's own
`logits_processor` layer on one hidden state per row, and `apply` on the resulting logits. The rows of the last two are
the same, so a state and the token drawn from it are recorded together, by request and output position. If a position
occurs twice (a prompt run in several chunks, or again after pre-emption), the last one is kept, which is when its token
counted.  # TOP-01 TOP-05
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from vllm.model_executor.layers.logits_processor import LogitsProcessor as Head
from vllm.v1.sample.logits_processor import LogitsProcessor, MoveDirectionality

from roles.inference.sampling import SamplingSettings, draw

WANTED = "intellect-node"
"""The key in a request's `extra_args` under which the engine says what to draw, or which states it wants."""

Draws = tuple[list[int], list[int], torch.Tensor, torch.Tensor, torch.Tensor]
"""Request numbers, output positions, tokens `[n]`, log-probabilities `[n]`, states `[n,
hidden]`, in chronological order."""


@dataclass(frozen=True, slots=True, eq=False)
class Drawing:
    """A request that is sampled. `output` is vLLM's own list, which grows during generation."""

    number: int
    output: list[int]
    seed: int
    settings: SamplingSettings


@dataclass(frozen=True, slots=True)
class Prefilling:
    """A request whose states from position `first` on are wanted; nothing is drawn."""

    number: int
    first: int


@dataclass(slots=True)
class Kept:
    """What has been drawn or seen since the last collection."""

    numbers: list[int] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    tokens: list[torch.Tensor] = field(default_factory=list)
    logprobs: list[torch.Tensor] = field(default_factory=list)
    states: list[torch.Tensor] = field(default_factory=list)
    prefilled: list[tuple[int, int, torch.Tensor]] = field(default_factory=list)

    def draws(self) -> Draws | None:
        """All draws concatenated; None when there were none."""
        if not self.numbers:
            return None
        return self.numbers, self.positions, torch.cat(self.tokens), torch.cat(self.logprobs), torch.cat(self.states)


class SeededSampling(LogitsProcessor):  # type: ignore[misc]
    """Draws every row's token by its own seed, and makes it the only one that greedy sampling can pick."""

    def __init__(self, vllm_config: Any, device: torch.device, is_pin_memory: bool) -> None:
        self.rows: dict[int, Drawing | Prefilling] = {}
        self.states: torch.Tensor | None = None
        self.kept = Kept()
        self._seeds: torch.Tensor | None = None

    def is_argmax_invariant(self) -> bool:
        """False: it changes which token is picked."""
        return False

    def update_state(self, batch_update: Any) -> None:
        """Track requests that enter, leave or change rows."""
        if batch_update is None:
            return
        self._seeds = None
        for index in batch_update.removed:
            self.rows.pop(index, None)
        for index, parameters, _, output in batch_update.added:
            wanted = (parameters.extra_args or {}).get(WANTED)
            self.rows.pop(index, None)
            if wanted is not None:
                self.rows[index] = _row(wanted, output)
        for first, second, direction in batch_update.moved:
            moved, other = self.rows.pop(first, None), self.rows.pop(second, None)
            if moved is not None:
                self.rows[second] = moved
            if direction == MoveDirectionality.SWAP and other is not None:
                self.rows[first] = other

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        """Draw, record, and raise the drawn tokens above all others."""
        states, self.states = self.states, None
        rows = [row for row in map(self.rows.get, range(len(logits))) if isinstance(row, Drawing)]
        if states is None or not rows or len(rows) < len(logits):
            return logits  # a trial run of vLLM's own, or a prefill
        if self._seeds is None:
            self._seeds = torch.tensor([row.seed for row in rows], device=logits.device)
        positions = [len(row.output) for row in rows]
        drawn = draw(logits, self._seeds, torch.tensor(positions, device=logits.device), rows[0].settings)
        self.kept.numbers += [row.number for row in rows]
        self.kept.positions += positions
        self.kept.tokens.append(drawn.tokens.cpu())
        self.kept.logprobs.append(drawn.logprobs.cpu())
        # Gathered row by row just before, so it is our own memory; moved off the GPU, which long batches would fill.
        self.kept.states.append(states.cpu())
        return logits.scatter_(1, drawn.tokens[:, None], torch.inf)


class WorkerMethods:
    """Mixed into vLLM's worker (`worker_extension_cls`), one in each process of a tensor-parallel group."""

    model_runner: Any
    rank: int

    def node_attach(self) -> None:
        """Hook the hidden states. The layer that turns them into logits is outside CUDA graphs and compiled code."""
        sampling = self._sampling()
        model = self.model_runner.model

        def watch_sampled(_: Any, given: tuple[Any, ...]) -> None:
            sampling.states = given[1]

        def watch_all(_: Any, __: Any, states: Any) -> None:
            self._keep_prefilled(sampling, states)

        head = next(layer for layer in model.modules() if isinstance(layer, Head))
        head.register_forward_pre_hook(watch_sampled)
        model.register_forward_hook(watch_all)

    def node_collect(self) -> tuple[Draws | None, list[tuple[int, int, torch.Tensor]]]:
        """What was recorded since the last call: draws, and states of prefills as (request, first output position,
        states). All ranks see the same, so only the first returns it."""
        sampling = self._sampling()
        kept, sampling.kept = sampling.kept, Kept()
        return (None, []) if self.rank else (kept.draws(), kept.prefilled)

    def node_head(self, states: torch.Tensor) -> torch.Tensor | None:
        """Logits `[n, vocabulary]` of states, in float32; None on ranks that do not gather."""
        device = next(self.model_runner.model.parameters()).device
        with torch.inference_mode():
            logits = self.model_runner.model.compute_logits(states.to(device))
        self._sampling().states = None
        return None if logits is None else logits.float()

    def node_swap(self, checkpoint: str) -> None:
        """Load the weights of another checkpoint of the same architecture, in place."""
        self.reload_weights(weights_path=checkpoint)  # type: ignore[attr-defined]
        for layer in self.model_runner.model.modules():
            # On a CPU the output head is a packed copy, which nobody repacks when it is tied to the embedding.
            if hasattr(layer, "cpu_linear") and layer.weight.numel():
                layer.quant_method.process_weights_after_loading(layer)

    def _sampling(self) -> SeededSampling:
        processors = self.model_runner.input_batch.logitsprocs.non_argmax_invariant
        return next(each for each in processors if isinstance(each, SeededSampling))

    def _keep_prefilled(self, sampling: SeededSampling, states: Any) -> None:
        wanted = {index: row for index, row in sampling.rows.items() if isinstance(row, Prefilling)}
        if not wanted or not isinstance(states, torch.Tensor):
            return
        batch, edges = self.model_runner.input_batch, self.model_runner.query_start_loc.np
        for index, row in wanted.items():
            begin, end = int(edges[index]), int(edges[index + 1])
            computed = int(batch.num_computed_tokens_cpu[index])
            skipped = max(0, row.first - computed)
            if begin + skipped < end:
                position = computed + skipped - row.first
                sampling.kept.prefilled.append((row.number, position, states[begin + skipped : end].clone()))


def _row(wanted: dict[str, Any], output: list[int]) -> Drawing | Prefilling:
    if "first" in wanted:
        return Prefilling(wanted["number"], wanted["first"])
    settings = SamplingSettings(
        temperature=wanted["temperature"], top_p=wanted["top_p"], top_k=wanted["top_k"], max_tokens=1
    )
    return Drawing(wanted["number"], output, wanted["seed"], settings)
