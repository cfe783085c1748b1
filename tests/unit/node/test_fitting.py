"""Parts that do not fit are reported before the run exists: afterwards honest workers would
submit what nobody can accept."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from dht.identity import NodeKey
from ledger.records import Operator
from node.base_model import default_model
from node.errors import ConfigError
from node.run_creation import NOWHERE, build_spec, read_draft
from roles.spec import RunSpec, TaskSpec, ToolSpec
from roles.tasks import TaskError, load_tasks
from roles.turns import load_tool, load_tool_use

OPERATOR = Operator(NodeKey(bytes(32)).node, "0x" + "11" * 20, "0x" + "11" * 20)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A copy of the built-in model, for a test to spoil."""
    return Path(shutil.copytree(default_model(), tmp_path / "model"))


def build(folder: Path, **changes: Any) -> RunSpec:
    draft = {**read_draft(None), **changes}
    return build_spec(draft, model=folder, place=NOWHERE, validators=[OPERATOR], trainers=[OPERATOR])


def test_build_spec__tokenizer_of_another_model(model: Path) -> None:
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps({**config, "vocab_size": 12}))
    with pytest.raises(ConfigError, match="writes tokens up to 20, the model knows those below 12"):
        build(model)


def test_build_spec__answers_as_long_as_no_completion(model: Path) -> None:
    with pytest.raises(ConfigError, match="answers of 4000 tokens, and completions end after 44"):
        build(model, length={"targets": [10, 4000]})


def test_build_spec__tokenizer_that_cannot_write_the_prompts(model: Path, tmp_path: Path) -> None:
    (tmp_path / "words.jsonl").write_text('{"prompt": "Say yes: ", "answer": "yes"}\n')
    with pytest.raises(ConfigError, match=r"of the prompt 'Say yes: ' the tokenizer in .* keeps '.*--model DIR"):
        build(model, tasks=[{"name": "match", "file": str(tmp_path / "words.jsonl")}])


@pytest.mark.parametrize("damage", [b"{}", b"\xff", b""])
def test_build_spec__tokenizer_that_is_none(model: Path, damage: bytes) -> None:
    (model / "tokenizer.json").write_bytes(damage)
    with pytest.raises(ConfigError, match="is not a tokenizer"):
        build(model)
    (model / "tokenizer.json").unlink()
    with pytest.raises(ConfigError, match=r"holds no tokenizer\.json"):
        build(model)


def test_build_spec__chat_without_a_template(model: Path) -> None:
    with pytest.raises(ConfigError, match="has no chat template"):
        build(model, model={"chat": True})


def test_build_spec__chat_template_with_today_s_date(model: Path) -> None:
    (model / "chat_template.jinja").write_text("{{ strftime_now('%d %b %Y') }}{{ messages[0]['content'] }}")
    with pytest.raises(ConfigError, match="put a fixed date into it"):
        build(model, model={"chat": True})


def test_build_spec__prompt_that_no_file_may_hold(model: Path) -> None:
    with pytest.raises(
        ConfigError,
        match=r"of \d+ problems have longer prompts than the 9 tokens .*, the longest, problem \d+, one of 10;",
    ):
        build(model, sampling={"max_prompt_tokens": 9})
    assert build(model, sampling={"max_prompt_tokens": 10}).sampling.max_prompt_tokens == 10


def test_build_spec__rows_longer_than_the_model_s_positions(model: Path) -> None:
    assert build(model, sampling={"max_prompt_tokens": 64, "max_tokens": 64}).max_output_tokens == 64
    with pytest.raises(ConfigError, match="65 tokens of prompt and 64 of completion, and the model has 128 positions"):
        build(model, sampling={"max_prompt_tokens": 65, "max_tokens": 64})
    with pytest.raises(ConfigError, match="64 tokens of prompt and 65 of completion"):
        build(model, sampling={"max_tokens": 1}, tool={"name": "calculator", "max_calls": 8, "max_tokens": 8})


def test_build_spec__positions_as_gpt_2_names_them(model: Path) -> None:
    config = json.loads((model / "config.json").read_text())
    config["n_positions"] = config.pop("max_position_embeddings")
    (model / "config.json").write_text(json.dumps(config))
    with pytest.raises(ConfigError, match="the model has 128 positions"):
        build(model, sampling={"max_prompt_tokens": 65, "max_tokens": 64})


def test_build_spec__sizes_of_a_model_that_takes_more_than_text(model: Path) -> None:
    """Its config.json has them in a nested part."""
    config = json.loads((model / "config.json").read_text())
    text = {**config, "model_type": "gemma3_text"}
    said = {"model_type": "gemma3", "architectures": config["architectures"], "text_config": text}
    (model / "config.json").write_text(json.dumps(said))
    with pytest.raises(ConfigError, match="the model has 128 positions"):
        build(model, sampling={"max_prompt_tokens": 65, "max_tokens": 64})


def test_build_spec__data_set_with_one_long_prompt(model: Path, tmp_path: Path) -> None:
    rows = [{"prompt": "1+1>", "answer": "2"}, {"prompt": "1+" * 30_000 + "1>", "answer": "30001"}]
    (tmp_path / "sums.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(ConfigError, match=r"task match: 1 of 2 problems .*, problem 2, one of 60002;"):
        build(model, tasks=[{"name": "match", "file": str(tmp_path / "sums.jsonl")}])


def test_build_spec__digest_of_the_tool(model: Path) -> None:
    spec = build(model, tool={"name": "calculator", "max_tokens": 2, "parameters": {"opening": "<<"}})
    assert spec.tool is not None
    assert spec.tool.digest == load_tool("calculator", {"opening": "<<"}).digest
    with pytest.raises(ConfigError, match="tool calculator: unknown parameter 'base'"):
        build(model, tool={"name": "calculator", "parameters": {"base": 2}})


def test_load__plugin_that_this_node_lacks_says_what_to_do() -> None:
    """The message to a worker or validator that joins without it."""
    absent = TaskSpec(name="proofs", size=5, digest="ab" * 32)
    with pytest.raises(TaskError, match="install the package that the run's operator names"):
        load_tasks([absent])
    with pytest.raises(TaskError, match="install the package that has it"):
        load_tool_use(ToolSpec(name="search", digest="ab" * 32))


def test_load__scorer_of_another_version_is_refused() -> None:
    other = TaskSpec(name="arithmetic", size=2048, digest="ab" * 32)
    with pytest.raises(TaskError, match="install the versions that the run's operator names"):
        load_tasks([other])
