"""`intellect-node model`: folders that an engine can run, and what is refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from transformers.integrations import hub_kernels

from node.cli import dispatch
from node.errors import ConfigError
from node.models import KINDS, find_source, import_model
from node.run_creation import default_model
from roles.inference.engine import Request, SamplingSettings
from roles.inference.transformers_engine import TransformersEngine

GREEDY = SamplingSettings(temperature=0.0, top_p=1.0, top_k=0, max_tokens=4)


@pytest.mark.parametrize("kind", KINDS)
def test_make__engine_runs_it(tmp_path: Path, kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert dispatch(["model", "make", str(tmp_path / "model"), "--kind", kind]) == 0
    engine = TransformersEngine()
    engine.load(tmp_path / "model")
    (completion,) = engine.generate([Request(engine.encode("1+1>"), 7)], GREEDY)
    assert completion.tokens
    assert "parameters in" in capsys.readouterr().out


def test_make__same_seed_same_weights(tmp_path: Path) -> None:
    for name in ("one", "two"):
        dispatch(["model", "make", str(tmp_path / name)])
    one, two = ((tmp_path / name / "model.safetensors").read_bytes() for name in ("one", "two"))
    assert one == two


def test_import__folder_in_another_dtype(tmp_path: Path) -> None:
    count = import_model(default_model(), tmp_path / "model", dtype="bfloat16")
    sizes = [(folder / "model.safetensors").stat().st_size for folder in (default_model(), tmp_path / "model")]
    assert count > 500_000
    assert sizes[1] < 0.6 * sizes[0]


def test_import__code_that_the_folder_names_as_its_kernel_is_not_fetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetched: list[str] = []
    monkeypatch.setattr(hub_kernels, "is_kernels_available", lambda *_: True)
    monkeypatch.setattr(hub_kernels, "get_kernel", lambda name, **_: fetched.append(name))
    source = shutil.copytree(default_model(), tmp_path / "source")
    config = json.loads((source / "config.json").read_text())
    (source / "config.json").write_text(json.dumps(config | {"_attn_implementation": "somebody/code"}))
    assert import_model(source, tmp_path / "model", dtype="float32") > 500_000
    assert not fetched


def test_import__existing_folder_is_not_written_over(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="exists already"):
        import_model(default_model(), tmp_path, dtype="float32")


def test_import__broken_file_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "config.json").write_text("{}")
    with pytest.raises(ConfigError, match="cannot be read as a model"):
        import_model(tmp_path / "source", tmp_path / "model", dtype="float32")
    assert [path.name for path in tmp_path.iterdir()] == ["source"]


@pytest.mark.parametrize(("source", "reason"), [("no-such-thing", "neither a file"), ("numpy", "holds 0 GGUF files")])
def test_find_source__refuse(source: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        find_source(source)
