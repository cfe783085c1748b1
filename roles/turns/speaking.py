"""Sampling of completions in turns, and where in a turn a call ends: shared by workers and validators.

The engine knows nothing of tools: each turn is a separate request with the longer prompt and the turn's seed. Rows
without calls cost no more than without tools.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch

from roles.inference.engine import Completion, Engine, Finish, Request, SamplingSettings
from roles.inference.errors import SequenceTooLong
from roles.turns.spans import Turns, own_spans, tool_spans, turn_seed
from roles.turns.tool import MAX_ANSWER, Tool, ToolUse

Decode = Callable[[Sequence[int]], str]


@dataclass(frozen=True, slots=True, eq=False)
class Spoken:
    """One completion. `states` `[policy's tokens, hidden]`; `logprobs` has 0.0 for the tool's tokens."""

    tokens: tuple[int, ...]
    turns: Turns
    finish: Finish
    logprobs: tuple[float, ...]
    states: torch.Tensor


def speak(engine: Engine, requests: Sequence[Request], settings: SamplingSettings, use: ToolUse | None) -> list[Spoken]:
    """Complete all requests and answer their calls. `settings.max_tokens` limits the policy's
    tokens over all turns together."""
    if use is None:
        return [
            Spoken(item.tokens, (), item.finish, item.logprobs, item.states)
            for item in engine.generate(requests, settings)
        ]
    talks = [_Talk(request, settings.max_tokens, engine, use) for request in requests]
    while going := [talk for talk in talks if talk.finish is None]:
        for talk, completion in zip(going, _generate(engine, going, settings), strict=True):
            talk.hear(completion)
    return [talk.spoken() for talk in talks]


def _generate(engine: Engine, talks: Sequence[_Talk], settings: SamplingSettings) -> list[Completion]:
    """Generate the next turn of each. They run together, with a limit for the one with most tokens left; if that
    exceeds the model's positions (one is already long, another has much left), they run one by one."""
    requests, most = [talk.request() for talk in talks], max(talk.left for talk in talks)
    try:
        return engine.generate(requests, replace(settings, max_tokens=most))
    except SequenceTooLong:
        if len(talks) == 1:
            raise
        return [_generate(engine, [talk], settings)[0] for talk in talks]


def find_call(decode: Decode, tokens: Sequence[int], tool: Tool) -> tuple[int, str] | None:
    """Where in a turn the first call ends, as a number of tokens, and its text; None when there is no call."""
    if tool.closing not in decode(tokens):
        return None
    # Tokens that can be part of a mark. The whole text is decoded only after an opening has been seen: otherwise a
    # completion consisting of closings would cost the square of its length.
    reach, opening = len(tool.closing), len(tool.opening) + 1
    is_open = not tool.opening
    for end in range(1, len(tokens) + 1):
        is_open = is_open or tool.opening in decode(tokens[max(0, end - opening) : end])
        if is_open and tool.closing in decode(tokens[max(0, end - reach) : end]):
            call = _call_in(decode(tokens[:end]), tool)
            if call is not None:
                return end, call
    return None


def answer_tokens(engine: Engine, use: ToolUse, call: str) -> tuple[int, ...]:
    """The tool's answer as tokens: bounded, and never one that ends the completion."""
    tokens = engine.encode(use.tool.answer(call)[:MAX_ANSWER], is_said=False)
    return tuple(token for token in tokens if token != engine.eos)[: use.max_tokens]


def find_turn_fault(output: Sequence[int], turns: Turns, *, engine: Engine, use: ToolUse, limit: int) -> str | None:
    """Why a completion cannot have come about in these turns, or None. `limit`: maximum
    number of the policy's tokens."""
    own, answers = list(own_spans(turns, len(output))), list(tool_spans(turns, len(output)))
    if len(answers) > use.max_calls:
        return "more calls than the run allows"
    said = 0
    for number, (start, end) in enumerate(own):
        said += end - start
        call = find_call(engine.decode, output[start:end], use.tool) if number < use.max_calls else None
        answer = tuple(output[slice(*answers[number])]) if number < len(answers) else None
        fault = _find_fault(end - start, call, answer, is_full=said >= limit, engine=engine, use=use)
        if fault is not None:
            return fault
    return None


def _find_fault(
    length: int,
    call: tuple[int, str] | None,
    answer: tuple[int, ...] | None,
    *,
    is_full: bool,
    engine: Engine,
    use: ToolUse,
) -> str | None:
    """The fault of one turn, from its length, the call found in it, the answer after it (None after the last turn), and
    whether the policy had no token left, in which case a call needs no answer."""
    if call is None:
        return None if answer is None else "a tool's answer to no call"
    if call[0] != length:
        return "a call that the policy went on after"
    if answer is None:
        return None if is_full else "a call without its answer"
    return None if answer == answer_tokens(engine, use, call[1]) else "not what the tool answers"


def _call_in(text: str, tool: Tool) -> str | None:
    if not tool.opening:
        return text.partition(tool.closing)[0]
    _, mark, said = text.rpartition(tool.opening)
    call, end, _ = said.partition(tool.closing)
    return call if mark and end else None


class _Talk:
    """One completion while it grows."""

    def __init__(self, request: Request, limit: int, engine: Engine, use: ToolUse) -> None:
        self._request, self._engine, self._use = request, engine, use
        self._tokens: list[int] = []
        self._turns: list[int] = []
        self._logprobs: list[float] = []
        self._states: list[torch.Tensor] = []
        self.left = limit
        self.finish: Finish | None = None

    def request(self) -> Request:
        """The request for the next turn."""
        seed = turn_seed(self._request.seed, len(self._turns) // 2)
        return Request((*self._request.prompt, *self._tokens), seed)

    def hear(self, completion: Completion) -> None:
        """Append a turn up to its call, or to its end; what was sampled beyond that is dropped."""
        tokens = completion.tokens[: self.left]
        calls = len(self._turns) // 2
        found = find_call(self._engine.decode, tokens, self._use.tool) if calls < self._use.max_calls else None
        count = found[0] if found else len(tokens)
        self._tokens += tokens[:count]
        self._turns.append(count)
        self._logprobs += completion.logprobs[:count]
        self._states.append(completion.states[:count])
        self.left -= count
        if found is None:
            self.finish = "eos" if tokens[-1] == self._engine.eos else "length"
        elif not self.left:
            self.finish = "length"  # no more tokens are allowed, so nothing is answered
        else:
            self._append_answer(answer_tokens(self._engine, self._use, found[1]))

    def _append_answer(self, answer: tuple[int, ...]) -> None:
        self._tokens += answer
        self._turns.append(len(answer))
        self._logprobs += [0.0] * len(answer)

    def spoken(self) -> Spoken:
        """The finished completion."""
        assert self.finish is not None  # noqa: S101 - `speak` asks only when it is over
        return Spoken(
            tuple(self._tokens), tuple(self._turns), self.finish, tuple(self._logprobs), torch.cat(self._states)
        )
