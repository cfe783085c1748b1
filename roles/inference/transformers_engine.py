"""The engine on Hugging Face transformers.

Uses left padding with explicit position ids; rows leave the batch when they are done. One attention kernel and one
dtype are pinned per engine, because the tolerance of the checks is measured for them.  # TOP-16
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import DynamicCache

from roles.inference.checkpoint_loading import (
    check_tokenizer,
    is_out_of_memory,
    load_model,
    load_tokenizer,
    read_architecture,
    swap_weights,
    tokenizer_digest,
)
from roles.inference.engine import Completion, Finish, Pair, Prefill, Request
from roles.inference.errors import BadCheckpoint, OutOfMemory
from roles.inference.model_sizes import sizes_of, text_config
from roles.inference.packing import check_sequences, shared_batches, similar_batches
from roles.inference.sampling import SamplingSettings, draw
from roles.inference.text import decode_tokens, encode_text

_PREFILL_TOKENS = 1 << 14  # padded tokens in one prefill batch
_LEAST_PREFILL_TOKENS = 16  # each row is then run by itself
_SHARED_TOKENS = 1 << 12
"""Tokens in a batch that continues a shared prompt. Their keys and values are held: a gigabyte for 32B parameters."""


class TransformersEngine:
    """`Engine` over `AutoModelForCausalLM`. Holds one model; not thread-safe.

    `max_rows` bounds the rows generated together. `attention` is the kernel, as transformers names it ("sdpa",
    "eager"). With `chat` a prompt is the user's message in the tokenizer's chat template.
    """

    def __init__(
        self,
        *,
        device: str = "cpu",
        dtype: torch.dtype = torch.float32,
        attention: str = "sdpa",
        max_rows: int = 256,
        chat: bool = False,
    ) -> None:
        self._device = torch.device(device)
        if self._device.type == "cuda":
            torch.backends.cuda.enable_cudnn_sdp(False)  # it plans anew for every length, and its versions differ
        self._dtype = dtype
        self._attention = attention
        self._max_rows = max_rows
        self._prefill_tokens = _PREFILL_TOKENS
        self._chat = chat
        self._architecture: dict[str, object] | None = None
        self._tokenizer_digest: str | None = None
        self._model: Any = None
        self._tokenizer: Any = None

    @property
    def eos(self) -> int:
        return int(self._loaded_tokenizer().eos_token_id)

    @property
    def vocabulary(self) -> int:
        return sizes_of(self._loaded_model().config).vocabulary

    def load(self, checkpoint: Path) -> None:
        architecture = read_architecture(checkpoint)
        same = self._model is not None and architecture == self._architecture
        if same and tokenizer_digest(checkpoint) != self._tokenizer_digest:
            raise BadCheckpoint(f"{checkpoint.name}: another tokenizer than that of the weights before")
        if same and swap_weights(self._model, checkpoint):
            return
        model = load_model(checkpoint, device=self._device, dtype=self._dtype, attention=self._attention)
        tokenizer = load_tokenizer(checkpoint)
        check_tokenizer(tokenizer, checkpoint, vocabulary=sizes_of(model.config).vocabulary, chat=self._chat)
        self._model, self._tokenizer, self._architecture = model, tokenizer, architecture
        self._tokenizer_digest = tokenizer_digest(checkpoint)

    def encode(self, text: str, *, is_said: bool = True) -> tuple[int, ...]:
        return encode_text(self._loaded_tokenizer(), text, chat=self._chat and is_said)

    def decode(self, tokens: Sequence[int]) -> str:
        return decode_tokens(self._loaded_tokenizer(), tokens)

    def generate(self, requests: Sequence[Request], settings: SamplingSettings) -> list[Completion]:
        self._check_tokens([request.prompt for request in requests], more=settings.max_tokens)
        completions: list[Completion] = []
        while len(completions) < len(requests):
            batch = requests[len(completions) : len(completions) + self._max_rows]
            try:
                completions += self._generate_batch(batch, settings)
            except (RuntimeError, MemoryError) as error:
                self._take_fewer_rows(error, len(batch))
        return completions

    def prefill(self, pairs: Sequence[Pair]) -> list[Prefill]:
        self._check_tokens([prompt for prompt, _ in pairs])
        self._check_tokens([output for _, output in pairs if output])
        self._check_tokens([prompt + output[:-1] for prompt, output in pairs])
        while True:
            try:
                return self._prefill_all(pairs)
            except (RuntimeError, MemoryError) as error:
                self._take_fewer_tokens(error)

    @torch.inference_mode()
    def _prefill_all(self, pairs: Sequence[Pair]) -> list[Prefill]:
        results: dict[int, Prefill] = {}
        for prompt, batch in shared_batches(pairs, most_tokens=min(_SHARED_TOKENS, self._prefill_tokens)):
            results.update(zip(batch, self._prefill_shared(prompt, [pairs[i][1] for i in batch]), strict=True))
        rest = [i for i in range(len(pairs)) if i not in results]
        for batch in similar_batches(
            [len(pairs[i][0]) + len(pairs[i][1]) for i in rest], most_tokens=self._prefill_tokens
        ):
            chosen = [rest[i] for i in batch]
            results.update(zip(chosen, self._prefill_batch([pairs[i] for i in chosen]), strict=True))
        return [results[i] for i in range(len(pairs))]

    @torch.inference_mode()
    def _generate_batch(self, requests: Sequence[Request], settings: SamplingSettings) -> list[Completion]:
        """Generate one batch. A prompt requested several times (a group's) is run once; its completions continue from
        its keys and values."""
        prompts = {prompt: number for number, prompt in enumerate(dict.fromkeys(each.prompt for each in requests))}
        ids, mask = self._left_padded(list(prompts))
        positions = (mask.cumsum(1) - 1).clamp(min=0)
        cache = DynamicCache(config=self._loaded_model().config)
        hidden = self._states(ids, mask, positions, cache)[:, -1]
        if len(prompts) < len(requests):
            owner = torch.tensor([prompts[each.prompt] for each in requests], device=self._device)
            cache.batch_select_indices(owner)
            hidden, mask, positions = hidden[owner], mask[owner], positions[owner]
        rows = [_Row(self.eos) for _ in requests]
        live = list(range(len(requests)))
        seeds = torch.tensor([request.seed for request in requests], device=self._device)
        for index in range(settings.max_tokens):
            drawn = draw(self._logits(hidden), seeds, torch.full_like(seeds, index), settings)
            states = hidden.to("cpu", copy=True).unbind(0)
            said = zip(drawn.tokens.tolist(), drawn.logprobs.tolist(), states, strict=True)
            for row, (token, logprob, state) in zip(live, said, strict=True):
                rows[row].add(token, logprob, state)
            kept = [i for i, row in enumerate(live) if not rows[row].ended]
            if not kept:
                break
            chosen = drawn.tokens
            if len(kept) < len(live):
                live = [live[i] for i in kept]
                selection = torch.tensor(kept, device=self._device)
                cache.batch_select_indices(selection)
                chosen, mask, positions = chosen[selection], mask[selection], positions[selection]
                seeds = seeds[selection]
            ids = chosen[:, None]
            mask = torch.cat([mask, mask.new_ones(len(live), 1)], dim=1)
            positions = positions[:, -1:] + 1
            if index + 1 < settings.max_tokens:
                hidden = self._states(ids, mask, positions, cache)[:, -1]
        return [row.completion() for row in rows]

    def _prefill_batch(self, pairs: Sequence[Pair]) -> list[Prefill]:
        """Right padding needs no mask: under causal attention no real token attends to what comes after it."""
        hidden = self._states(self._right_padded([prompt + output[:-1] for prompt, output in pairs]), None, None, None)
        return [
            Prefill(hidden[row, len(prompt) - 1 :][: len(output)], self._head)
            for row, (prompt, output) in enumerate(pairs)
        ]

    def _prefill_shared(self, prompt: tuple[int, ...], outputs: Sequence[tuple[int, ...]]) -> list[Prefill]:
        """Prefill completions of one prompt. The prompt is run once, and they continue from its keys and values."""
        cache = DynamicCache(config=self._loaded_model().config)
        last = self._states(self._right_padded([prompt]), None, None, cache)[:, -1]
        cache.batch_repeat_interleave(len(outputs))
        hidden = self._states(self._right_padded([output[:-1] for output in outputs]), None, None, cache)
        return [
            Prefill(torch.cat([last, hidden[row, : len(output) - 1]]), self._head) for row, output in enumerate(outputs)
        ]

    def _states(
        self,
        ids: torch.Tensor,
        mask: torch.Tensor | None,
        positions: torch.Tensor | None,
        cache: DynamicCache | None,
    ) -> torch.Tensor:
        """Last hidden states after the final norm, `[rows, tokens, hidden]`."""
        # Positional arguments, because the cache's parameter has had two names.
        output = self._loaded_model().get_decoder()(ids, mask, positions, cache, use_cache=cache is not None)
        states: torch.Tensor = output.last_hidden_state
        return states

    @torch.inference_mode()
    def _head(self, states: torch.Tensor) -> torch.Tensor:
        return self._logits(states)

    def _logits(self, states: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self._loaded_model().get_output_embeddings()(states)
        cap = getattr(text_config(self._loaded_model().config), "final_logit_softcapping", None)  # Gemma 2
        return logits.float() if cap is None else torch.tanh(logits / cap).float() * cap

    def _right_padded(self, sequences: Sequence[tuple[int, ...]]) -> torch.Tensor:
        ids = torch.zeros(len(sequences), max(map(len, sequences)), dtype=torch.int64)
        for row, sequence in enumerate(sequences):
            ids[row, : len(sequence)] = torch.tensor(sequence)
        return ids.to(self._device)

    def _left_padded(self, prompts: Sequence[tuple[int, ...]]) -> tuple[torch.Tensor, torch.Tensor]:
        width = max(map(len, prompts))
        ids = torch.zeros(len(prompts), width, dtype=torch.int64)
        mask = torch.zeros(len(prompts), width, dtype=torch.int64)
        for row, prompt in enumerate(prompts):
            ids[row, width - len(prompt) :] = torch.tensor(prompt)
            mask[row, width - len(prompt) :] = 1
        return ids.to(self._device), mask.to(self._device)

    def _take_fewer_rows(self, error: BaseException, rows: int) -> None:
        """Halve the rows generated together after running out of memory. Raises any other error,
        and OutOfMemory at one row."""
        self._free_memory(error, is_last=rows == 1)
        self._max_rows = rows // 2

    def _take_fewer_tokens(self, error: BaseException) -> None:
        """As `_take_fewer_rows`, for the tokens of one `prefill` batch."""
        self._free_memory(error, is_last=self._prefill_tokens <= _LEAST_PREFILL_TOKENS)
        self._prefill_tokens //= 2

    def _free_memory(self, error: BaseException, *, is_last: bool) -> None:
        if not is_out_of_memory(error):
            raise error
        if is_last:
            raise OutOfMemory(f"{self._device}: no memory left for one sequence") from error
        if self._device.type == "cuda":
            torch.cuda.empty_cache()

    def _check_tokens(self, sequences: Sequence[tuple[int, ...]], more: int = 0) -> None:
        check_sequences(sequences, vocabulary=self.vocabulary, positions=self._positions, more=more)

    @property
    def _positions(self) -> int:
        return sizes_of(self._loaded_model().config).positions or 1 << 31

    def _loaded_model(self) -> Any:
        if self._model is None:
            raise ValueError("load a checkpoint first")
        return self._model

    def _loaded_tokenizer(self) -> Any:
        if self._tokenizer is None:
            raise ValueError("load a checkpoint first")
        return self._tokenizer


class _Row:
    """One completion while it grows."""

    def __init__(self, eos: int) -> None:
        self._eos = eos
        self._tokens: list[int] = []
        self._logprobs: list[float] = []
        self._states: list[torch.Tensor] = []

    @property
    def ended(self) -> bool:
        return bool(self._tokens) and self._tokens[-1] == self._eos

    def add(self, token: int, logprob: float, state: torch.Tensor) -> None:
        self._tokens.append(token)
        self._logprobs.append(logprob)
        self._states.append(state)

    def completion(self) -> Completion:
        finish: Finish = "eos" if self.ended else "length"
        return Completion(tuple(self._tokens), finish, tuple(self._logprobs), torch.stack(self._states))
