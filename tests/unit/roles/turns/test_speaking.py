"""Completions in turns: calls are answered where they end, and nowhere else."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from dht.encoding import pack
from roles.inference.engine import Completion, Request
from roles.inference.errors import SequenceTooLong
from roles.inference.sampling import SamplingSettings
from roles.turns import Spoken, ToolUse, find_call, own_spans, own_tokens, speak, tool_spans, turn_seed
from roles.turns.calculator import load_calculator
from roles.turns.speaking import find_turn_fault

EOS = 0
SETTINGS = SamplingSettings(1.0, 1.0, 0, 12)
USE = ToolUse(load_calculator({}), max_calls=2, max_tokens=8)


class Parrot:
    """An engine of characters that outputs what it was given, turn by turn; `|` ends the completion."""

    vocabulary = 128
    eos = EOS

    def __init__(self, *said: str) -> None:
        self._said = list(said)
        self.asked: list[Request] = []

    def load(self, checkpoint: object) -> None: ...

    def generate(self, requests: Sequence[Request], settings: SamplingSettings) -> list[Completion]:
        self.asked += requests
        return [self._say(self._said.pop(0)[: settings.max_tokens]) for _ in requests]

    def _say(self, text: str) -> Completion:
        tokens = self.encode(text)
        states = torch.arange(len(tokens), dtype=torch.bfloat16)[:, None]
        return Completion(tokens, "eos" if text.endswith("|") else "length", (-0.5,) * len(tokens), states)

    def prefill(self, pairs: object) -> list[Any]:
        raise NotImplementedError

    def encode(self, text: str, *, is_said: bool = True) -> tuple[int, ...]:
        return tuple(EOS if character == "|" else ord(character) for character in text)

    def decode(self, tokens: Sequence[int]) -> str:
        return "".join(chr(token) for token in tokens if token != EOS)


class Cramped(Parrot):
    """One with room for 18 tokens."""

    def generate(self, requests: Sequence[Request], settings: SamplingSettings) -> list[Completion]:
        if max(len(each.prompt) for each in requests) + settings.max_tokens > 18:
            raise SequenceTooLong
        return super().generate(requests, settings)


def say(*said: str, use: ToolUse | None = USE, settings: SamplingSettings = SETTINGS) -> tuple[Spoken, Parrot]:
    parrot = Parrot(*said)
    return speak(parrot, [Request((5,), 99)], settings, use)[0], parrot


def text_of(spoken: Spoken) -> str:
    return "".join("|" if token == EOS else chr(token) for token in spoken.tokens)


def test_speak__calls_are_answered_and_what_was_said_after_them_is_dropped() -> None:
    spoken, parrot = say("3+4=99;", ";7+2=1|", ";9|")
    assert text_of(spoken) == "3+4=7;7+2=9;9|"
    assert spoken.turns == (4, 1, 5, 1, 3)
    assert spoken.finish == "eos"
    assert len(spoken.states) == 12
    assert spoken.logprobs[4] == 0.0
    assert spoken.logprobs[5] == -0.5
    assert [len(request.prompt) for request in parrot.asked] == [1, 6, 12]
    assert [request.seed for request in parrot.asked] == [99, turn_seed(99, 1), turn_seed(99, 2)]


def test_speak__the_budget_is_the_policys_alone() -> None:
    spoken, _ = say("11+22=", "abcdefghij", settings=SamplingSettings(1.0, 1.0, 0, 10))
    assert text_of(spoken) == "11+22=33abcd"
    assert spoken.turns == (6, 2, 4)
    assert spoken.finish == "length"


def test_speak__a_call_at_the_end_of_the_budget_is_not_answered() -> None:
    spoken, _ = say("11+22=xx", settings=SamplingSettings(1.0, 1.0, 0, 6))
    assert (text_of(spoken), spoken.turns, spoken.finish) == ("11+22=", (6,), "length")


def test_speak__past_the_last_call_all_is_plain_text() -> None:
    spoken, _ = say("1=", "2=", "3=4=|")
    assert text_of(spoken) == "1=12=23=4=|"
    assert spoken.turns == (2, 1, 2, 1, 5)


def test_speak__without_a_tool_nothing_is_different() -> None:
    spoken, parrot = say("3+4=99|", use=None)
    assert (text_of(spoken), spoken.turns) == ("3+4=99|", ())
    assert parrot.asked == [Request((5,), 99)]


def test_find_call__needs_its_opening() -> None:
    parrot, tool = Parrot(), load_calculator({"opening": "<<"})
    assert find_call(parrot.decode, parrot.encode("a=b <<1+2=3"), tool) == (10, "1+2")
    assert find_call(parrot.decode, parrot.encode("a=b 1+2=3"), tool) is None


def test_spans__alternate() -> None:
    assert list(own_spans((9, 2, 4), 15)) == [(0, 9), (11, 15)]
    assert list(tool_spans((9, 2, 4), 15)) == [(9, 11)]
    assert list(own_spans((), 3)) == [(0, 3)]
    assert own_tokens("abcdef", (2, 3, 1)) == ("a", "b", "f")


def test_turn_seed__by_the_documents() -> None:
    """docs/protocol.md: `draw(seed in decimal, "turn", n, 2^63)`."""
    packed = pack("draw/1", "99", "turn", 1)
    assert turn_seed(99, 0) == 99
    assert turn_seed(99, 1) == int.from_bytes(hashlib.sha256(packed).digest()[:8], "big") % 2**63


@pytest.mark.parametrize(
    ("output", "turns", "fault"),
    [
        ("3+4=7;|", (4, 1, 2), None),
        ("3+4=8;|", (4, 1, 2), "not what the tool answers"),
        ("3+4=7;|", (7,), "a call that the policy went on after"),
        ("3+4;7;|", (4, 1, 2), "a tool's answer to no call"),
        ("3+4=7;|", (3, 2, 2), "a tool's answer to no call"),
        ("3+4=7;|", (4, 2, 1), "not what the tool answers"),
        ("3+4=7;|", (5, 1, 1), "a call that the policy went on after"),
        ("3+4=", (4,), "a call without its answer"),
        ("1=12=23=3|", (2, 1, 2, 1, 2, 1, 1), "more calls than the run allows"),
    ],
)
def test_find_turn_fault__neither_passes_for_the_other(output: str, turns: tuple[int, ...], fault: str | None) -> None:
    parrot = Parrot()
    found = find_turn_fault(parrot.encode(output), turns, engine=parrot, use=USE, limit=12)
    assert found == fault


def test_find_call__closings_without_an_opening_cost_no_more_than_reading_once() -> None:
    tool, read = load_calculator({"opening": "<<", "closing": ">>"}), 0

    def decode(tokens: Sequence[int]) -> str:
        nonlocal read
        read += len(tokens)
        return "".join(map(chr, tokens))

    assert find_call(decode, [ord(">")] * 1000, tool) is None
    assert read < 10_000
    assert find_call(decode, [ord(each) for each in ">> <<7+4>> 2"], tool) == (10, "7+4")


def test_speak__rows_that_do_not_fit_together_are_said_one_by_one() -> None:
    engine = Cramped("00007+40=", "1=", "ab|", "cd|")
    said = speak(engine, [Request((5,), 99), Request((5,), 98)], SETTINGS, USE)
    assert [text_of(each) for each in said] == ["00007+40=47ab|", "1=1cd|"]
