"""Weights and state on disk: exact, atomic, without pickle."""

import errno
import json
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from roles.rl import checkpoint
from roles.rl.checkpoint import STATE_FILE, CheckpointError, load_state, save_checkpoint, save_state


def make_base(folder: Path, *, dtype: torch.dtype = torch.bfloat16) -> dict[str, torch.Tensor]:
    """A checkpoint in two files, as large models are, with a file that must not be copied."""
    weights = {"a.weight": torch.arange(6.0).view(2, 3), "b.weight": torch.ones(4)}
    folder.mkdir()
    for number, (name, tensor) in enumerate(weights.items()):
        save_file({name: tensor.to(dtype)}, folder / f"model-{number + 1:05}-of-00002.safetensors")
    (folder / "config.json").write_text(json.dumps({"model_type": "qwen2"}))
    (folder / "modeling.py").write_text("print('never')")
    return weights


@contextmanager
def full_disk(room: int = 16) -> Iterator[None]:
    """No file of this process can grow longer: what a quota does."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_save_checkpoint__laid_out_as_the_base(tmp_path: Path) -> None:
    weights = make_base(tmp_path / "base")
    save_checkpoint(tmp_path / "new", base=tmp_path / "base", weights={**weights, "tied.weight": torch.ones(1)})
    assert sorted(file.name for file in (tmp_path / "new").iterdir()) == [
        "config.json",
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
    ]
    written = load_file(tmp_path / "new" / "model-00001-of-00002.safetensors")
    assert written.keys() == {"a.weight"}
    assert written["a.weight"].dtype == torch.bfloat16


def test_save_checkpoint__equal_weights_give_equal_bytes(tmp_path: Path) -> None:
    weights = make_base(tmp_path / "base")
    for name in ("one", "two"):
        save_checkpoint(tmp_path / name, base=tmp_path / "base", weights=weights)
    for file in (tmp_path / "one").iterdir():
        assert file.read_bytes() == (tmp_path / "two" / file.name).read_bytes()


def test_save_checkpoint__replaces_and_leaves_nothing_else(tmp_path: Path) -> None:
    weights = make_base(tmp_path / "base")
    save_checkpoint(tmp_path / "new", base=tmp_path / "base", weights=weights)
    save_checkpoint(tmp_path / "new", base=tmp_path / "base", weights={k: v + 1 for k, v in weights.items()})
    assert load_file(tmp_path / "new" / "model-00002-of-00002.safetensors")["b.weight"].tolist() == [2.0] * 4
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["base", "new"]


def test_save_checkpoint__a_failure_leaves_the_old_one(tmp_path: Path) -> None:
    weights = make_base(tmp_path / "base")
    save_checkpoint(tmp_path / "new", base=tmp_path / "base", weights=weights)
    before = (tmp_path / "new" / "model-00002-of-00002.safetensors").read_bytes()
    with pytest.raises(CheckpointError, match=r"no tensor b\.weight"):
        save_checkpoint(tmp_path / "new", base=tmp_path / "base", weights={"a.weight": weights["a.weight"] + 1})
    assert (tmp_path / "new" / "model-00002-of-00002.safetensors").read_bytes() == before


def test_save_checkpoint__refuse_another_shape(tmp_path: Path) -> None:
    weights = make_base(tmp_path / "base")
    with pytest.raises(CheckpointError, match=r"no tensor b\.weight of shape \(4,\)"):
        save_checkpoint(tmp_path / "new", base=tmp_path / "base", weights={**weights, "b.weight": torch.ones(5)})


def test_save_checkpoint__refuse_a_base_without_weights(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"no \.safetensors file"):
        save_checkpoint(tmp_path / "new", base=tmp_path, weights={})


def test_load_state__gives_back_what_was_saved(tmp_path: Path) -> None:
    save_state(tmp_path, {"x": torch.tensor([1.5, -0.0])}, {"updates": 3})
    tensors, numbers = load_state(tmp_path)
    assert tensors["x"].tolist() == [1.5, -0.0]
    assert numbers == {"updates": 3}


def test_load_state__a_killed_write_changes_nothing__ckpt_01(tmp_path: Path) -> None:
    save_state(tmp_path, {"x": torch.ones(2)}, {"updates": 3})
    (tmp_path / f".{STATE_FILE}.tmp").write_bytes(b"half")
    assert load_state(tmp_path)[1] == {"updates": 3}


@pytest.mark.parametrize("content", [None, b"", b"\x00" * 64, b"\xff" * 64, b"\x80\x04K\x01."])
def test_load_state__refuse_what_is_no_state(tmp_path: Path, content: bytes | None) -> None:
    if content is not None:
        (tmp_path / STATE_FILE).write_bytes(content)
    with pytest.raises(CheckpointError, match="learner's state"):
        load_state(tmp_path)


def test_load_state__refuse_another_version(tmp_path: Path) -> None:
    save_file({"x": torch.ones(1)}, tmp_path / STATE_FILE, metadata={"learner/0": "{}"})
    with pytest.raises(CheckpointError, match="not a learner's state of this version"):
        load_state(tmp_path)


def test_save_state__a_full_disk_is_the_disk_s_error_and_the_last_state_stays(tmp_path: Path) -> None:
    save_state(tmp_path, {"x": torch.ones(2)}, {"updates": 3})
    with pytest.raises(OSError, match=STATE_FILE) as caught, full_disk():
        save_state(tmp_path, {"x": torch.zeros(2)}, {"updates": 4})
    assert caught.value.errno == errno.EFBIG
    assert load_state(tmp_path)[1] == {"updates": 3}


def test_save_checkpoint__a_full_disk_is_the_disk_s_error(tmp_path: Path) -> None:
    weights = make_base(tmp_path / "base")
    (tmp_path / "base" / "config.json").unlink()  # so that the weights are written first
    with pytest.raises(OSError, match="safetensors") as caught, full_disk():
        save_checkpoint(tmp_path / "new", base=tmp_path / "base", weights=weights)
    assert caught.value.errno == errno.EFBIG


def test_save_state__is_written_beside_the_last_and_put_in_its_place_when_it_is_whole(tmp_path: Path) -> None:
    save_state(tmp_path, {"x": torch.ones(2)}, {"updates": 3})
    (tmp_path / f".{STATE_FILE}.tmp").mkdir()  # so that it cannot be written there
    with pytest.raises(IsADirectoryError):
        save_state(tmp_path, {"x": torch.zeros(2)}, {"updates": 4})
    assert load_state(tmp_path)[1] == {"updates": 3}


@pytest.mark.parametrize(
    "said", ["I/O error: File too large (os error 27)", "IoError(Os { code: 27, kind: FileTooLarge })"]
)
def test_save_state__the_disk_s_error_in_the_words_of_each_safetensors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise SafetensorError(f"Error while serializing: {said}")

    monkeypatch.setattr(checkpoint, "save_file", refuse)
    with pytest.raises(OSError, match=STATE_FILE) as caught:
        save_state(tmp_path, {"x": torch.ones(2)}, {"updates": 3})
    assert caught.value.errno == errno.EFBIG
