"""A delta from a stranger rebuilds what its digests say or is `Malformed`; an honest one always rebuilds exactly."""

from __future__ import annotations

import contextlib
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from dht.errors import Malformed
from roles.shardcast.delta import DeltaBase, FolderBase, apply_delta, encode_delta
from roles.shardcast.delta.block import BF16, F32, Format, decode_block, encode_block
from roles.shardcast.delta.rank import bitmap, pack_words
from roles.shardcast.delta.symbols import join_values, pack_low, split_values, unpack_low

FORMS = st.sampled_from([BF16, F32])
EDITS = st.lists(st.tuples(st.integers(0, 2**20), st.integers(0, 255)), min_size=1, max_size=6)


def make_blocks(form: Format, *, elements: int, seed: int, changed: float) -> tuple[bytes, bytes]:
    draw = np.random.default_rng(seed)
    before = draw.normal(0, 0.05, elements).astype(np.float32)
    after = np.where(draw.random(elements) < changed, before + draw.normal(0, 1e-3, elements), before)
    both = ((w.astype(np.float32).view(np.uint32) >> (23 - form.mantissa)).astype(form.dtype) for w in (before, after))
    first, second = (bits.tobytes() for bits in both)
    return first, second


def edit(data: bytes, edits: list[tuple[int, int]]) -> bytes:
    edited = bytearray(data)
    for position, value in edits:
        edited[position % len(edited)] = value
    return bytes(edited)


@dataclass(frozen=True)
class Made:
    """A base, the bytes of a delta, and the files it rebuilds."""

    base: Path
    delta: bytes
    files: set[bytes]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    folder = tmp_path_factory.mktemp("delta")
    weights = torch.randn(3000, generator=torch.Generator().manual_seed(0))
    for name, shift in (("base", 0.0), ("new", 1e-3)):
        (folder / name).mkdir()
        tensors = {"a": (weights + shift).to(torch.bfloat16), "b": weights[:50] + shift}
        save_file(tensors, folder / name / "model.safetensors")
        (folder / name / "config.json").write_text(str(shift))
    encode_delta(folder / "base", folder / "new", folder / "delta")
    files = {path.read_bytes() for path in (folder / "new").iterdir()}
    return Made(folder / "base", (folder / "delta").read_bytes(), files)


@given(FORMS, st.integers(1, 3000), st.integers(0, 99), st.sampled_from([0.0, 0.001, 0.05, 0.5, 1.0]))
@settings(max_examples=80, deadline=None)
def test_decode_block__rebuilds(form: Format, elements: int, seed: int, changed: float) -> None:
    before, after = make_blocks(form, elements=elements, seed=seed, changed=changed)
    assert decode_block(before, encode_block(before, after, form)[0], form) == after


@given(FORMS, st.integers(1, 64).flatmap(lambda n: st.tuples(*[st.binary(min_size=4 * n, max_size=4 * n)] * 2)))
@settings(max_examples=80, deadline=None)
def test_decode_block__any_floats(form: Format, blocks: tuple[bytes, bytes]) -> None:
    before, after = blocks
    assert decode_block(before, encode_block(before, after, form)[0], form) == after


@given(FORMS, st.binary(max_size=300))
@settings(max_examples=100, deadline=None)
def test_decode_block__any_bytes(form: Format, data: bytes) -> None:
    before, _ = make_blocks(form, elements=500, seed=0, changed=0.0)
    with contextlib.suppress(Malformed):
        assert len(decode_block(before, data, form)) == len(before)


@given(FORMS, st.sampled_from([0.01, 0.3]), EDITS)
@settings(max_examples=150, deadline=None)
def test_decode_block__bytes_changed(form: Format, changed: float, edits: list[tuple[int, int]]) -> None:
    before, after = make_blocks(form, elements=500, seed=1, changed=changed)
    with contextlib.suppress(Malformed):
        assert len(decode_block(before, edit(encode_block(before, after, form)[0], edits), form)) == len(before)


@given(EDITS, st.integers(0, 400))
@settings(max_examples=60, deadline=None)
def test_apply_delta__bytes_changed(made: Made, edits: list[tuple[int, int]], window: int) -> None:
    """Half of the edits hit the header and the first block's head."""
    edits = [(p % window if window else p, value) for p, value in edits]
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "delta").write_bytes(edit(made.delta, edits))
        with contextlib.suppress(Malformed):
            apply_delta(made.base, Path(folder) / "delta", Path(folder) / "into")
            assert {path.read_bytes() for path in (Path(folder) / "into").iterdir()} == made.files


@given(st.binary(max_size=200))
@settings(max_examples=60, deadline=None)
def test_apply_delta__any_bytes(made: Made, data: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "delta").write_bytes(made.delta[: len(data)] + data)
        with contextlib.suppress(Malformed):
            apply_delta(made.base, Path(folder) / "delta", Path(folder) / "into")
            raise AssertionError("random bytes made a checkpoint")


@given(st.lists(st.integers(0, 2**31 - 1) | st.integers(0, 9), max_size=50))
@settings(max_examples=100, deadline=None)
def test_join_values__inverse(numbers: list[int]) -> None:
    values = np.array(numbers, np.int64)
    symbols, widths, low = split_values(values)
    assert np.array_equal(join_values(symbols, unpack_low(widths, pack_low(widths, low))), values)


@given(st.lists(st.booleans(), min_size=1, max_size=300))
@settings(max_examples=100, deadline=None)
def test_bitmap__as_listed(members: list[bool]) -> None:
    mask = np.array(members)
    subset, positions = bitmap(pack_words(mask)), np.flatnonzero(mask)
    assert np.array_equal(subset.rank(positions, mask), np.arange(subset.size))
    assert np.array_equal(subset.select(np.arange(subset.size)), positions)


@dataclass(frozen=True)
class Bytes:
    """A delta in memory."""

    data: bytes

    def read_at(self, start: int, length: int, /) -> bytes:
        """Read from any offset."""
        return self.data[start : start + length]


@given(EDITS)
@settings(max_examples=150, deadline=None)
def test_delta_base__bytes_changed(made: Made, edits: list[tuple[int, int]]) -> None:
    with contextlib.suppress(Malformed):
        held = DeltaBase(Bytes(edit(made.delta, edits)), FolderBase(made.base), max_bytes=10**6)
        for (name, start), placed in held._blocks.items():
            with contextlib.suppress(Malformed):
                assert len(held.read(name, start, placed.block.size)) == placed.block.size
