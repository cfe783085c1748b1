"""Building and judging manifests."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

import pytest

from dht.errors import Malformed, PeerError
from dht.identity import NodeKey
from roles.messages import CheckpointManifest, FileEntry
from roles.shardcast.manifest import build_manifest, check_manifest, choose_shard_size, manifest_digest, seal_manifest
from tests.unit.roles.shardcast.network import RUN, TRAINER, WORKER, ZERO, make_checkpoint, make_manifest


@pytest.mark.parametrize(("total", "size"), [(1000, 65_536), (64 * 2**20, 2**20), (65 * 10**9, 50_000_000)])
def test_choose_shard_size__overlapping_hops_and_no_crumbs(total: int, size: int) -> None:
    assert choose_shard_size(total) == size


def test_build_manifest__shards_cut_across_files(tmp_path: Path) -> None:
    folder = make_checkpoint(tmp_path / "c", size=10_000)
    manifest = make_manifest(folder, shard_size=1024)
    whole = b"".join((folder / entry.name).read_bytes() for entry in manifest.files)
    cuts = [whole[start : start + 1024] for start in range(0, len(whole), 1024)]
    assert [entry.name for entry in manifest.files] == ["added_tokens.json", "config.json", "model.safetensors"]
    assert manifest.shards == tuple(hashlib.sha256(cut).hexdigest() for cut in cuts)
    assert manifest.weights == hashlib.sha256(b"".join(hashlib.sha256(cut).digest() for cut in cuts)).hexdigest()


def test_build_manifest__whole_shards_only_when_size_divides(tmp_path: Path) -> None:
    assert len(make_manifest(make_checkpoint(tmp_path / "c", size=4096), shard_size=1024).shards) == 4


def test_build_manifest__hidden_files_left_out(tmp_path: Path) -> None:
    folder = make_checkpoint(tmp_path / "c")
    (folder / ".manifest").write_bytes(b"x")
    assert all(not entry.name.startswith(".") for entry in make_manifest(folder).files)


def test_build_manifest__empty_directory_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no checkpoint"):
        build_manifest(tmp_path, run=RUN, term=0, step=0, parent=ZERO, shard_size=1024)


def test_check_manifest__accepts_and_digest_outlives_sealing(tmp_path: Path) -> None:
    manifest = make_manifest(make_checkpoint(tmp_path / "c"))
    first, second = seal_manifest(TRAINER, manifest, now_ms=1), seal_manifest(TRAINER, manifest, now_ms=2)
    assert check_manifest(first, run=RUN, trainers=[TRAINER.node]) == manifest
    assert manifest_digest(first) == manifest_digest(second) == manifest_digest(manifest) == first.digest


def test_check_manifest__reject_stranger_wgt_05(tmp_path: Path) -> None:
    envelope = seal_manifest(WORKER, make_manifest(make_checkpoint(tmp_path / "c")))
    with pytest.raises(PeerError, match="not signed by a trainer"):
        check_manifest(envelope, run=RUN, trainers=[TRAINER.node])


def test_check_manifest__reject_other_run(tmp_path: Path) -> None:
    envelope = seal_manifest(TRAINER, make_manifest(make_checkpoint(tmp_path / "c")))
    with pytest.raises(Malformed, match="another run"):
        check_manifest(envelope, run="cd" * 32, trainers=[TRAINER.node])


SPOILS: dict[str, tuple[Callable[[CheckpointManifest], dict[str, object]], str]] = {
    "one shard too few": (lambda m: {"shards": m.shards[:-1]}, "count of shards"),
    "one shard too many": (lambda m: {"shards": (*m.shards, ZERO)}, "count of shards"),
    "another weights digest": (lambda m: {"weights": ZERO}, "weights digest"),
    "shards in another order": (lambda m: {"shards": m.shards[::-1]}, "weights digest"),
    "a name twice": (lambda m: {"files": (*m.files, m.files[0])}, "share a name"),
    "a name twice but for case": (
        lambda m: {"files": (*m.files, FileEntry(name="ADDED_tokens.json", size=0))},
        "share",
    ),
    "too many bytes": (lambda m: {"files": (FileEntry(name="big", size=2**50),)}, "over the bound"),
    "no bytes": (lambda m: {"files": (FileEntry(name="empty", size=0),)}, "empty"),
}


@pytest.mark.parametrize("name", SPOILS)
def test_check_manifest__reject(name: str, tmp_path: Path) -> None:
    spoil, reason = SPOILS[name]
    manifest = make_manifest(make_checkpoint(tmp_path / "c"))
    spoiled = manifest.model_copy(update=spoil(manifest))
    with pytest.raises(Malformed, match=reason):
        check_manifest(seal_manifest(TRAINER, spoiled), run=RUN, trainers=[TRAINER.node])


@pytest.mark.parametrize("name", ["../evil", ".hidden", "a/b", "", "x" * 129, "nul\0"])
def test_check_manifest__reject_file_name(name: str, tmp_path: Path) -> None:
    manifest = make_manifest(make_checkpoint(tmp_path / "c"))
    evil = FileEntry.model_construct(name=name, size=manifest.files[1].size)
    spoiled = manifest.model_copy(update={"files": (evil, *manifest.files[2:])})
    with pytest.raises(Malformed):
        check_manifest(seal_manifest(TRAINER, spoiled), run=RUN, trainers=[TRAINER.node])


def test_seal_manifest__signer_stands_in_the_subkey(tmp_path: Path) -> None:
    key = NodeKey(b"k" * 32)
    envelope = seal_manifest(key, make_manifest(make_checkpoint(tmp_path / "c"), step=7))
    assert envelope.subkey == f"{key.node}:7"
