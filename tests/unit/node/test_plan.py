"""The plan of a testnet: the same seed gives the same keys, and every port is different."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

from node.base_model import default_model
from node.commands.testnet import main
from node.errors import ConfigError
from node.run_creation import ChainPlace, build_spec, read_draft
from node.sources import load_config
from node.testnet.adversaries.kinds import KINDS
from node.testnet.plan import TestnetOptions, make_plan, write_node

PLACE = ChainPlace(31337, "0x" + "11" * 20, "ab" * 32, "cd" * 32)


def test_make_plan__same_seed_same_keys(tmp_path: Path) -> None:
    one, two = (make_plan(TestnetOptions(tmp_path)) for _ in range(2))
    other = make_plan(TestnetOptions(tmp_path, seed=2))
    assert [node.key.node for node in one.nodes] == [node.key.node for node in two.nodes]
    assert not {node.key.node for node in one.nodes} & {node.key.node for node in other.nodes}


def test_make_plan__ports_and_operators_are_distinct(tmp_path: Path) -> None:
    plan = make_plan(TestnetOptions(tmp_path, workers=3, validators=4, relays=3))
    ports = [port for node in plan.nodes for port in (node.port, node.http_port) if port]
    operators = [node.operator_key for node in plan.nodes if node.operator_key]
    assert len(set(ports)) == len(ports) == 1 + 4 + 2 * 3
    assert len(set(operators)) == len(operators) == 1 + 4 + 3
    assert plan.quorum == 3


def test_make_plan__trainers_that_stand_by(tmp_path: Path) -> None:
    plan = make_plan(TestnetOptions(tmp_path, trainers=3))
    assert [node.name for node in plan.trainers] == ["trainer", "trainer-2", "trainer-3"]
    assert plan.trainer == plan.trainers[0]
    alone = make_plan(TestnetOptions(tmp_path))
    assert alone.trainer.key.node == plan.trainer.key.node
    assert len({node.operator_key for node in (*plan.trainers, *plan.validators, *plan.relays)}) == 3 + 3 + 2


@pytest.mark.parametrize(
    "wrong",
    [
        {"validators": 0},
        {"relays": 0},
        {"steps": 0},
        {"workers": -1},
        {"workers": 100},
        {"trainers": 0},
        {"trainers": 9},
    ],
)
def test_make_plan__numbers_that_make_no_network(tmp_path: Path, wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        make_plan(TestnetOptions(tmp_path, **wrong))


def test_write_node__is_a_configuration_a_node_takes(tmp_path: Path) -> None:
    plan = make_plan(TestnetOptions(tmp_path / 'with "quotes"'))
    for node in plan.nodes:
        write_node(node, join="join", spec=tmp_path / "spec.json", model=default_model())
        tomllib.loads(node.config_file.read_text())
        config = load_config(file=node.config_file, environment={}, flags={})
        assert (config.role, config.home) == (node.role, node.home)
        assert (config.spec is None) == (node.role == "worker")


def test_build_spec__completes_the_built_in_draft__ux_09(tmp_path: Path) -> None:
    plan = make_plan(TestnetOptions(tmp_path))
    spec = build_spec(
        {**read_draft(None), "quorum": plan.quorum},
        model=default_model(),
        place=PLACE,
        validators=[node.as_operator() for node in plan.validators],
        trainers=[node.as_operator() for node in plan.trainers],
    )
    assert spec.tasks[0].size > 0
    assert any(file.name.endswith(".safetensors") for file in spec.model.files)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"trainnig": {}}, "trainnig"),
        ({"training": {"stesp": 3}}, "stesp"),
        ({"tasks": [{"name": "arithmetik"}]}, "did you mean 'arithmetic'"),
        ({"quorum": 1}, "quorum"),
    ],
)
def test_build_spec__wrong_draft_is_named(tmp_path: Path, change: dict[str, object], said: str) -> None:
    plan = make_plan(TestnetOptions(tmp_path))
    with pytest.raises(ConfigError, match=said):
        build_spec(
            {**read_draft(None), "quorum": plan.quorum, **change},
            model=default_model(),
            place=PLACE,
            validators=[node.as_operator() for node in plan.validators],
            trainers=[node.as_operator() for node in plan.trainers],
        )


def test_make_plan__adversaries_are_workers_beside_the_honest_ones(tmp_path: Path) -> None:
    plan = make_plan(TestnetOptions(tmp_path, workers=1, adversaries=("int4", "inflated-rewards")))
    assert [node.name for node in plan.adversaries] == ["adversary-int4", "adversary-inflated-rewards"]
    assert {node.role for node in plan.adversaries} == {"worker"}
    assert set(plan.adversaries) <= set(plan.nodes)
    assert len({node.key.node for node in plan.nodes}) == len(plan.nodes)


@pytest.mark.parametrize(("kinds", "said"), [(("int7",), "did you mean int8"), (("int8", "int8"), "each kind once")])
def test_make_plan__adversaries_that_there_are_not(tmp_path: Path, kinds: tuple[str, ...], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        make_plan(TestnetOptions(tmp_path, adversaries=kinds))


def test_testnet__lists_its_adversaries(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--adversary", "list"]) == 0
    said = capsys.readouterr().out
    assert all(kind in said for kind in KINDS)
