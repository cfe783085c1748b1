"""Data sets of a run: from the draft's file to every node, by digest."""

from __future__ import annotations

import hashlib
from importlib import resources
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ledger.records import Operator
from node.base_model import default_model
from node.data_sets import digests_of, find_data_sets, from_relays
from node.errors import ConfigError
from node.run_creation import NOWHERE, build_spec, read_draft
from roles.spec import RunSpec, TaskSpec
from tests.builders import make_spec, node_key

DATA = b'{"prompt": "1+1?", "answer": "2"}\n'
DIGEST = hashlib.sha256(DATA).hexdigest()


def spec_with_data() -> RunSpec:
    task = TaskSpec(name="match", parameters={"data": DIGEST}, size=1, digest="0" * 64)
    return make_spec().model_copy(update={"tasks": (task, task)})


OPERATOR = Operator(node_key(1).node, "0x" + "11" * 20, "0x" + "22" * 20)


async def never(digest: str, most: int) -> bytes:
    raise AssertionError(f"asked for {digest}, {most}")


async def from_relay(digest: str, most: int) -> bytes:
    assert (digest, most >= len(DATA)) == (DIGEST, True)
    return DATA


def read_run_draft(folder: Path, *, file: str) -> dict[str, Any]:
    """The built-in draft with a task of a data set, named relative to the draft."""
    text = resources.files("node.testnet").joinpath("run.toml").read_text()
    task = f'name = "match"\nfile = "{file}"\nparameters.after = ":"'
    (folder / "run.toml").write_text(text.replace('name = "arithmetic"', task))
    return read_draft(folder / "run.toml")


def test_build_spec__digest_takes_the_place_of_the_file(tmp_path: Path) -> None:
    (tmp_path / "problems.jsonl").write_bytes(DATA)
    draft = read_run_draft(tmp_path, file="problems.jsonl")
    spec = build_spec(
        draft,
        model=default_model(),
        place=NOWHERE,
        validators=[OPERATOR],
        trainers=[OPERATOR],
        data_sets=tmp_path / "tasks",
    )
    assert spec.tasks[0].parameters == {"after": ":", "data": DIGEST}
    assert (tmp_path / "tasks" / DIGEST).read_bytes() == DATA


def test_build_spec__absent_file_is_named(tmp_path: Path) -> None:
    draft = read_run_draft(tmp_path, file="nowhere.jsonl")
    with pytest.raises(ConfigError, match=r"cannot read the data set .*nowhere\.jsonl"):
        build_spec(draft, model=default_model(), place=NOWHERE, validators=[OPERATOR], trainers=[OPERATOR])


def test_digests_of__each_once() -> None:
    assert digests_of(spec_with_data()) == (DIGEST,)
    assert digests_of(make_spec()) == ()


async def test_find_data_sets__from_a_relay_and_kept(tmp_path: Path) -> None:
    await find_data_sets(spec_with_data(), home=tmp_path, beside=None, get=from_relay)
    await find_data_sets(spec_with_data(), home=tmp_path, beside=None, get=never)
    assert (tmp_path / "tasks" / DIGEST).read_bytes() == DATA


async def test_find_data_sets__from_beside_the_spec(tmp_path: Path) -> None:
    (tmp_path / "tasks").mkdir()
    (tmp_path / "tasks" / DIGEST).write_bytes(DATA)
    await find_data_sets(spec_with_data(), home=tmp_path / "node", beside=tmp_path / "spec.json", get=never)
    assert (tmp_path / "node" / "tasks" / DIGEST).read_bytes() == DATA


async def test_find_data_sets__damaged_one_is_fetched_again(tmp_path: Path) -> None:
    (tmp_path / "tasks").mkdir()
    (tmp_path / "tasks" / DIGEST).write_bytes(DATA[:-1])
    await find_data_sets(spec_with_data(), home=tmp_path, beside=None, get=from_relay)
    assert (tmp_path / "tasks" / DIGEST).read_bytes() == DATA


async def test_from_relays__looks_for_relays_before_it_asks() -> None:
    told: list[str] = []

    async def refresh() -> None:
        told.append("looked")

    async def get(digest: str, *, limit: int) -> bytes:
        told.append("asked")
        return await from_relay(digest, limit)

    fetch = from_relays(SimpleNamespace(get=get), SimpleNamespace(refresh=refresh))  # type: ignore[arg-type]
    assert await fetch(DIGEST, len(DATA)) == DATA
    assert told == ["looked", "asked"]
