"""Before a node opens anything: what its settings cannot be, said as wrong usage so that nothing starts it again by itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dht.identity import NodeKey
from ledger.keystore import save_key
from node.config import NodeConfig
from node.errors import UsageError
from node.join import JoinString
from node.starting import check_place, check_settings
from tests.builders import STRANGER, TRAINER, TRAINER_OPERATOR, VALIDATOR_OPERATORS, VALIDATORS, WORKERS, make_spec

SPEC = make_spec()


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"wallet": "0x12"}, "neither an address"),
        ({"wallet": "0x000000000000000000000000000000000000DEad"}, "fails its checksum"),
        ({"key": "none.key"}, "no key file at none.key"),
        ({"operator_key": "none.key"}, "cannot read the key file"),
        ({"announce": ("here",)}, "here"),
        ({"role": "relay", "sponsor": True}, "name its operator key"),
        ({}, "nobody to ask about the run"),
    ],
)
def test_check_settings__each_fault_is_wrong_usage(tmp_path: Path, settings: dict[str, Any], said: str) -> None:
    config = NodeConfig(**{"role": "worker", "data": tmp_path, **settings})
    with pytest.raises(UsageError, match=said):
        check_settings(config, JoinString("ab" * 32))


def place(tmp_path: Path, role: Any, operator: bytes | None) -> NodeConfig:
    """Settings of a trainer or validator with this operator key."""
    path = tmp_path / "operator.key"
    if operator is not None:
        save_key(path, operator)
    return NodeConfig(role=role, data=tmp_path, operator_key=path if operator else None)


@pytest.mark.parametrize(
    ("role", "key", "operator", "said"),
    [
        ("trainer", STRANGER, TRAINER_OPERATOR, "is not a trainer of the run"),
        ("validator", TRAINER, TRAINER_OPERATOR, "is not a validator of the run"),
        ("trainer", TRAINER, None, "name its operator key"),
        ("validator", VALIDATORS[0], TRAINER_OPERATOR, "the run expects"),
    ],
)
def test_check_place__whom_the_run_does_not_name(
    tmp_path: Path, role: Any, key: NodeKey, operator: bytes | None, said: str
) -> None:
    with pytest.raises(UsageError, match=said):
        check_place(place(tmp_path, role, operator), SPEC, key.node)


@pytest.mark.parametrize(
    ("role", "key", "operator"),
    [
        ("trainer", TRAINER, TRAINER_OPERATOR),
        ("validator", VALIDATORS[0], VALIDATOR_OPERATORS[0]),
        ("worker", WORKERS[0], None),
        ("relay", STRANGER, None),
    ],
)
def test_check_place__whom_it_names_and_who_needs_no_name(
    tmp_path: Path, role: Any, key: NodeKey, operator: bytes | None
) -> None:
    check_place(place(tmp_path, role, operator), SPEC, key.node)
