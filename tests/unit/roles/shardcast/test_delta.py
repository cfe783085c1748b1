from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from dht.encoding import encode
from dht.errors import Malformed
from roles.messages import FileEntry
from roles.shardcast.delta import DeltaBase, FolderBase, apply_delta, decode_files, encode_delta, encode_worthwhile
from roles.shardcast.delta.block import BF16, F32, Format, decode_block, encode_block
from roles.shardcast.delta.encoding import MAGIC
from roles.shardcast.delta.plan import FilePlan, Plan, Span, plan_file
from roles.shardcast.rebuild import JoinedFiles

Tensors = dict[str, torch.Tensor]


def make_tensors(*, step: float = 0.0, elements: int = 40_000) -> Tensors:
    draw = torch.Generator().manual_seed(3)
    weights = torch.randn(elements, generator=draw) * 0.05
    weights = weights + step * torch.randn(elements, generator=draw)
    return {
        "half": weights.to(torch.bfloat16),
        "single": weights[:5000].clone(),
        "norm": torch.ones(64, dtype=torch.bfloat16),
        "steps": torch.arange(9) + (1 if step else 0),
    }


def make_checkpoint(path: Path, tensors: Tensors, *, config: str = "{}", metadata: str = "pt") -> Path:
    path.mkdir()
    save_file(tensors, path / "model.safetensors", metadata={"format": metadata})
    (path / "config.json").write_text(config)
    return path


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return make_checkpoint(tmp_path / "base", make_tensors())


@pytest.fixture
def new(tmp_path: Path) -> Path:
    return make_checkpoint(tmp_path / "new", make_tensors(step=1e-5), config='{"step": 1}')


def contents(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def round_trip(base: Path, new: Path, tmp_path: Path) -> int:
    encode_delta(base, new, tmp_path / "delta")
    apply_delta(base, tmp_path / "delta", tmp_path / "into")
    assert contents(tmp_path / "into") == contents(new)
    return (tmp_path / "delta").stat().st_size


def test_apply_delta__files_identical(base: Path, new: Path, tmp_path: Path) -> None:
    round_trip(base, new, tmp_path)


def test_apply_delta__nothing_changed(base: Path, tmp_path: Path) -> None:
    assert round_trip(base, base, tmp_path) < 1000


def test_apply_delta__other_metadata_shifts_the_tensors(base: Path, tmp_path: Path) -> None:
    new = make_checkpoint(tmp_path / "new", make_tensors(step=1e-6), metadata="a longer text than before")
    assert round_trip(base, new, tmp_path) < 30_000


def test_apply_delta__other_tensors_sent_whole(base: Path, tmp_path: Path) -> None:
    new = make_checkpoint(tmp_path / "new", make_tensors(elements=1000))
    assert round_trip(base, new, tmp_path) > (new / "model.safetensors").stat().st_size


def test_apply_delta__file_the_base_lacks(base: Path, new: Path, tmp_path: Path) -> None:
    (new / "tokenizer.json").write_text("[1, 2]")
    (new / "empty.json").touch()
    (base / "only_here.json").write_text("{}")
    round_trip(base, new, tmp_path)


def test_apply_delta__broken_safetensors_sent_whole(base: Path, new: Path, tmp_path: Path) -> None:
    for text in (b"[1]", b"{", b'{"a": 3}', b'{"a": {"dtype": "BF16", "data_offsets": [4, 8]}}'):
        (new / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + b"12345678")
        assert plan_file(base / "model.safetensors", new / "model.safetensors").spans[0].kind == "literal"


def test_encode_delta__report(base: Path, new: Path, tmp_path: Path) -> None:
    report = encode_delta(base, new, tmp_path / "delta")
    assert report.full_bytes == sum(len(data) for data in contents(new).values())
    assert report.delta_bytes == (tmp_path / "delta").stat().st_size
    assert report.elements == 40_000 + 5000 + 64
    assert 4000 < report.changed < 20_000


def test_encode_worthwhile__same_bytes(base: Path, new: Path, tmp_path: Path) -> None:
    report = encode_worthwhile(base, new, tmp_path / "delta")
    assert report == encode_delta(base, new, tmp_path / "plain")
    assert (tmp_path / "delta").read_bytes() == (tmp_path / "plain").read_bytes()


@pytest.mark.parametrize("step", [10.0, 0.005])
def test_encode_worthwhile__none_when_nearly_all_changed__wgt_22(base: Path, tmp_path: Path, step: float) -> None:
    new = make_checkpoint(tmp_path / "new", make_tensors(step=step))
    assert encode_worthwhile(base, new, tmp_path / "delta") is None
    assert not list(tmp_path.glob("*delta*"))


def test_encode_worthwhile__none_past_the_share_though_the_sample_was_small(base: Path, tmp_path: Path) -> None:
    new = make_checkpoint(tmp_path / "new", make_tensors(step=1e-5))
    assert encode_worthwhile(base, new, tmp_path / "delta", most_share=0.005) is None
    assert not list(tmp_path.glob("*delta*"))


def test_encode_worthwhile__none_without_a_base(base: Path, tmp_path: Path) -> None:
    (tmp_path / "none").mkdir()
    assert encode_worthwhile(tmp_path / "none", base, tmp_path / "delta") is None


def test_decode_files__other_files_than_the_manifest_lists(base: Path, new: Path, tmp_path: Path) -> None:
    encode_delta(base, new, tmp_path / "delta")
    with (tmp_path / "delta").open("rb") as source, pytest.raises(Malformed, match="other files"):
        next(decode_files(source, FolderBase(base), files=[FileEntry(name="config.json", size=13)]))


def test_encode_delta__no_checkpoint(base: Path, tmp_path: Path) -> None:
    (tmp_path / "none").mkdir()
    with pytest.raises(ValueError, match="holds 0 files"):
        encode_delta(base, tmp_path / "none", tmp_path / "delta")


def test_apply_delta__other_base__wgt_20(base: Path, new: Path, tmp_path: Path) -> None:
    encode_delta(base, new, tmp_path / "delta")
    other = make_checkpoint(tmp_path / "other", make_tensors(step=1e-3))
    with pytest.raises(Malformed):
        apply_delta(other, tmp_path / "delta", tmp_path / "into")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["base", "delta", "new", "other"]  # CKPT-10


def test_apply_delta__base_lacks_the_file(base: Path, new: Path, tmp_path: Path) -> None:
    encode_delta(base, new, tmp_path / "delta")
    (base / "model.safetensors").unlink()
    with pytest.raises(Malformed, match="holds no model"):
        apply_delta(base, tmp_path / "delta", tmp_path / "into")


@pytest.mark.parametrize("length", [0, 7, 10, 60, 400, -40, -1])
def test_apply_delta__cut(base: Path, new: Path, tmp_path: Path, length: int) -> None:
    delta = tmp_path / "delta"
    encode_delta(base, new, delta)
    delta.write_bytes(delta.read_bytes()[:length])
    with pytest.raises(Malformed):
        apply_delta(base, delta, tmp_path / "into")


def test_apply_delta__bytes_after_its_end(base: Path, new: Path, tmp_path: Path) -> None:
    delta = tmp_path / "delta"
    encode_delta(base, new, delta)
    delta.write_bytes(delta.read_bytes() + b"\0")
    with pytest.raises(Malformed, match="after its end"):
        apply_delta(base, delta, tmp_path / "into")


def make_plan(
    *, name: str = "config.json", size: int = 2, spans: tuple[tuple[str, int], ...] = (("bytes", 2),)
) -> Plan:
    made = tuple(Span.model_validate({"kind": kind, "size": length}) for kind, length in spans)
    return Plan(files=(FilePlan(file=FileEntry(name=name, size=size), base_start=0, spans=made),))


@pytest.mark.parametrize(
    "plan",
    [
        make_plan(size=3),
        make_plan(spans=(("bytes", 2**40),), size=2**40),
        make_plan(spans=(("bf16", 1), ("bytes", 1))),
        make_plan(spans=(("literal", 2**40),), size=2**40),
        Plan(files=make_plan().files * 2),
        Plan(files=tuple(make_plan(name=n, size=3000, spans=(("literal", 1),) * 3000).files[0] for n in "ab")),
    ],
)
def test_apply_delta__plan_refused(base: Path, tmp_path: Path, plan: Plan) -> None:
    header = encode(plan)
    (tmp_path / "delta").write_bytes(MAGIC + struct.pack("<I", len(header)) + header + bytes(5))
    with pytest.raises(Malformed):
        apply_delta(base, tmp_path / "delta", tmp_path / "into", max_bytes=2**30)


def test_apply_delta__name_leaves_the_directory(base: Path, tmp_path: Path) -> None:
    header = encode(make_plan()).replace(b"config.json", b"../escaped_")
    (tmp_path / "delta").write_bytes(MAGIC + struct.pack("<I", len(header)) + header)
    with pytest.raises(Malformed, match="name"):
        apply_delta(base, tmp_path / "delta", tmp_path / "into")


@pytest.mark.parametrize("form", [BF16, F32])
def test_decode_block__special_floats(form: Format) -> None:
    specials = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1e-45, 3e38, -1.0], np.float32).view("<u4")
    bits = (specials >> (23 - form.mantissa)).astype(form.dtype)
    before, after = np.repeat(bits, 8).tobytes(), np.tile(bits, 8).tobytes()
    assert decode_block(before, encode_block(before, after, form)[0], form) == after


def entropy(counts: np.ndarray[tuple[int], np.dtype[np.float64]]) -> float:
    some = counts[counts > 0]
    return float(-(some * np.log2(some / some.sum())).sum())


def test_encode_block__near_the_bound_given_the_exponent() -> None:
    draw = np.random.default_rng(5)
    weights = draw.normal(0, 0.05, 2_000_000).astype(np.float32)
    steps = (draw.normal(0, 3e-6, len(weights))).astype(np.float32)
    before, after = ((w.view(np.uint32) >> 16).astype("<u2") for w in (weights, weights + steps))
    exponents, grown = (before >> 7) & 255, after.astype(np.int64) - before.astype(np.int64)
    bits = 0.0
    for exponent in np.unique(exponents):
        bits += entropy(np.unique(grown[exponents == exponent], return_counts=True)[1].astype(np.float64))
    assert 8 * len(encode_block(before.tobytes(), after.tobytes(), BF16)[0]) < 1.1 * bits


def chained(folders: list[Path], tmp_path: Path) -> DeltaBase:
    """The checkpoint before the last one, by a delta from the first; deltas of both steps are made."""
    for number in (1, 2):
        encode_delta(folders[number - 1], folders[number], tmp_path / f"delta{number}")
    first = JoinedFiles([tmp_path / "delta1"])
    return DeltaBase(first, FolderBase(folders[0]), max_bytes=10**6)


def decode_onto(base: DeltaBase, delta: Path, new: Path) -> bytes:
    files = [FileEntry(name=path.name, size=path.stat().st_size) for path in sorted(new.iterdir())]
    with delta.open("rb") as source:
        return b"".join(bytes(block) for block in decode_files(source, base, files=files))


def test_delta_base__chain_makes_what_its_last_delta_was_made_of(base: Path, tmp_path: Path) -> None:
    folders = [base, *(make_checkpoint(tmp_path / f"c{n}", make_tensors(step=n * 1e-5)) for n in (1, 2))]
    held = chained(folders, tmp_path)
    made = decode_onto(held, tmp_path / "delta2", folders[2])
    assert made == b"".join(contents(folders[2])[name] for name in sorted(contents(folders[2])))
    assert held.size("model.safetensors") == (folders[1] / "model.safetensors").stat().st_size
    assert held.size("other") == 0


def test_delta_base__reject_another_cut(base: Path, tmp_path: Path) -> None:
    folders = [base, *(make_checkpoint(tmp_path / f"c{n}", make_tensors(step=n * 1e-5)) for n in (1, 2))]
    held = chained(folders, tmp_path)
    with pytest.raises(Malformed, match="cut alike"):
        held.read("model.safetensors", 0, 8)


@pytest.mark.parametrize("keep", [0, 4, 11, 40, -40])
def test_delta_base__reject_a_cut_delta(base: Path, new: Path, tmp_path: Path, keep: int) -> None:
    encode_delta(base, new, tmp_path / "whole")
    (tmp_path / "delta").write_bytes((tmp_path / "whole").read_bytes()[:keep])
    with pytest.raises(Malformed):
        read_through(DeltaBase(JoinedFiles([tmp_path / "delta"]), FolderBase(base), max_bytes=10**6))


def read_through(held: DeltaBase) -> None:
    for name, start in list(held._blocks):
        held.read(name, start, held._blocks[name, start].block.size)


def test_read_at__across_files(tmp_path: Path) -> None:
    for number, data in enumerate((b"abc", b"", b"defg")):
        (tmp_path / str(number)).write_bytes(data)
    joined = JoinedFiles([tmp_path / str(number) for number in range(3)])
    assert [joined.read_at(start, 3) for start in (0, 1, 2, 5, 7, 9)] == [b"abc", b"bcd", b"cde", b"fg", b"", b""]
