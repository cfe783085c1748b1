"""A rollout file from a stranger parses or is `MalformedRollouts`: never another error, whatever the bytes."""

from __future__ import annotations

import contextlib

import numpy as np
from hypothesis import example, given, settings
from hypothesis import strategies as st

from roles.rollouts.errors import MalformedRollouts
from roles.rollouts.schema import RolloutFile, RolloutRow, read_rollouts, write_rollouts
from tests.unit.roles.rollouts.rollout_builders import LIMITS, make_file

VALID = write_rollouts(make_file())
FLOATS = st.floats(width=32, allow_nan=False, allow_infinity=False)
TOKENS = st.lists(st.integers(0, LIMITS.vocabulary - 1), min_size=1, max_size=LIMITS.max_output_tokens)


@st.composite
def rows(draw: st.DrawFn) -> RolloutRow:
    output = tuple(draw(TOKENS))
    logprobs = st.tuples(*[st.floats(-100, 0, width=32)] * len(output))
    return RolloutRow(
        group=draw(st.integers(0, 2**31 - 1)),
        problem_id=draw(st.integers(0, 2**63 - 1)),
        prompt=tuple(draw(TOKENS)),
        output=output,
        reward=draw(FLOATS),
        seed=draw(st.integers(0, 2**63 - 1)),
        temperature=draw(st.floats(0, 100, width=32)),
        finish=draw(st.sampled_from(["eos", "length"])),
        proof=draw(st.binary(max_size=LIMITS.max_proof_bytes)),
        output_logprobs=draw(st.none() | logprobs),
        target_length=draw(st.none() | st.integers(0, 2**31 - 1)),
    )


@given(st.lists(rows(), min_size=1, max_size=4), st.integers(0, 2**63 - 1), st.text(max_size=40))
@settings(max_examples=40, deadline=None)
def test_read_rollouts__inverts_write(contents: list[RolloutRow], step: int, node: str) -> None:
    file = RolloutFile("ab" * 32, node, step, "cd" * 32, 5, 3, tuple(contents))
    assert read_rollouts(write_rollouts(file), LIMITS) == file


@given(st.binary(max_size=400))
@example(b"PAR1PAR1")
@settings(max_examples=200, deadline=None)
def test_read_rollouts__any_bytes(data: bytes) -> None:
    for candidate in (data, b"PAR1" + data + len(data).to_bytes(4, "little") + b"PAR1"):
        with contextlib.suppress(MalformedRollouts):
            read_rollouts(candidate, LIMITS)


def test_read_rollouts__every_byte_of_the_file_changed() -> None:
    """Each position in turn takes another value: whole footers of near-valid Thrift."""
    generator = np.random.default_rng(0)
    for position in range(len(VALID)):
        data = bytearray(VALID)
        data[position] ^= int(generator.integers(1, 256))
        with contextlib.suppress(MalformedRollouts):
            read_rollouts(bytes(data), LIMITS)


@given(st.lists(st.tuples(st.integers(0, len(VALID) - 1), st.integers(0, 255)), min_size=1, max_size=12))
@settings(max_examples=300, deadline=None)
def test_read_rollouts__several_bytes_changed(changes: list[tuple[int, int]]) -> None:
    data = bytearray(VALID)
    for position, value in changes:
        data[position] = value
    with contextlib.suppress(MalformedRollouts):
        read_rollouts(bytes(data), LIMITS)


@given(st.integers(0, len(VALID)), st.integers(0, len(VALID)), st.binary(max_size=30))
@settings(max_examples=200, deadline=None)
def test_read_rollouts__a_piece_replaced(start: int, stop: int, piece: bytes) -> None:
    data = VALID[: min(start, stop)] + piece + VALID[max(start, stop) :]
    with contextlib.suppress(MalformedRollouts):
        read_rollouts(data, LIMITS)
