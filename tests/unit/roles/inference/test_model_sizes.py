"""Vocabulary size and positions, in every form in which a configuration states them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from roles.inference.errors import BadCheckpoint
from roles.inference.model_sizes import Sizes, read_sizes


def write_config(folder: Path, **said: object) -> Path:
    (folder / "config.json").write_text(json.dumps(said))
    return folder


@pytest.mark.parametrize(
    ("said", "sizes"),
    [
        ({"vocab_size": 21, "max_position_embeddings": 128}, Sizes(21, 128)),
        ({"vocab_size": 21, "n_positions": 64}, Sizes(21, 64)),
        ({"model_type": "gpt2"}, Sizes(50_257, 1024)),
        ({"model_type": "bloom", "vocab_size": 21}, Sizes(21, None)),  # positions are no numbers of its own
        (
            {"model_type": "gemma3", "text_config": {"vocab_size": 64, "max_position_embeddings": 32}},
            Sizes(64, 32),
        ),
        ({"model_type": "gemma3", "text_config": {"hidden_size": 32}}, Sizes(262_208, 131_072)),
    ],
)
def test_read_sizes__as_said_or_as_the_kind_has_them(said: dict[str, object], sizes: Sizes, tmp_path: Path) -> None:
    assert read_sizes(write_config(tmp_path, **said)) == sizes


@pytest.mark.parametrize(
    "said",
    [{}, {"vocab_size": "many"}, {"model_type": "gemma3", "text_config": 3}, {"model_type": "vit"}],
)
def test_read_sizes__refuse_what_does_not_tell(said: dict[str, object], tmp_path: Path) -> None:
    with pytest.raises(BadCheckpoint, match=r"config\.json"):
        read_sizes(write_config(tmp_path, **said))


@pytest.mark.parametrize("content", [None, b"", b"[]", b"\xff", b"[" * 100_000])
def test_read_sizes__refuse_what_is_no_configuration(content: bytes | None, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / "config.json").write_bytes(content)
    with pytest.raises(BadCheckpoint, match=r"config\.json"):
        read_sizes(tmp_path)
