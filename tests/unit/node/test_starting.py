"""Invalid settings, found before a node opens anything and reported as wrong usage, so that
nothing restarts it automatically."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from dht.identity import NodeKey
from ledger.changes import ValidatorsProposed
from ledger.errors import LedgerUnavailable
from ledger.records import Operator, ValidatorSet
from ledger.wallet import address_of
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


class Appointed:
    """A ledger with or without an operator key, whose validators are the spec's or those the owner has named since."""

    def __init__(self, key: bytes | None, *, held: Sequence[Operator] = (), waiting: Sequence[Operator] = ()) -> None:
        self.operator = address_of(key) if key else None
        self._held, self._waiting = tuple(held), tuple(waiting)

    async def validators_at(self, block: int | None = None) -> ValidatorSet:
        return ValidatorSet(1, self._held, 1, 10)

    async def waiting_validators(self) -> ValidatorsProposed | None:
        if not self._waiting:
            return None
        return ValidatorsProposed(block=9, number=2, quorum=1, apply_at=10**9, validators=self._waiting)


@pytest.mark.parametrize(
    ("role", "key", "operator", "said"),
    [
        ("trainer", STRANGER, TRAINER_OPERATOR, "is not a trainer of the run"),
        ("validator", TRAINER, TRAINER_OPERATOR, "is not a validator of the run"),
        ("trainer", TRAINER, None, "name its operator key"),
        ("validator", VALIDATORS[0], TRAINER_OPERATOR, "the run expects"),
    ],
)
async def test_check_place__whom_the_run_does_not_name(
    tmp_path: Path, role: Any, key: NodeKey, operator: bytes | None, said: str
) -> None:
    with pytest.raises(UsageError, match=said):
        await check_place(NodeConfig(role=role, data=tmp_path), SPEC, key.node, Appointed(operator))


@pytest.mark.parametrize(
    ("role", "key", "operator"),
    [
        ("trainer", TRAINER, TRAINER_OPERATOR),
        ("validator", VALIDATORS[0], VALIDATOR_OPERATORS[0]),
        ("worker", WORKERS[0], None),
        ("relay", STRANGER, None),
    ],
)
async def test_check_place__whom_it_names_and_who_needs_no_name(
    tmp_path: Path, role: Any, key: NodeKey, operator: bytes | None
) -> None:
    await check_place(NodeConfig(role=role, data=tmp_path), SPEC, key.node, Appointed(operator))


@pytest.mark.parametrize("when", ["held", "waiting"])
async def test_check_place__validator_that_the_owner_has_appointed_since(tmp_path: Path, when: str) -> None:
    address = address_of(TRAINER_OPERATOR)
    ledger = Appointed(TRAINER_OPERATOR, **{when: [Operator(STRANGER.node, address, address)]})
    config = NodeConfig(role="validator", data=tmp_path)
    await check_place(config, SPEC, STRANGER.node, ledger)
    with pytest.raises(UsageError, match="is not a trainer of the run"):
        await check_place(config.model_copy(update={"role": "trainer"}), SPEC, STRANGER.node, ledger)


async def test_check_place__a_history_that_is_not_read_yet_is_waited_for(tmp_path: Path) -> None:
    class Reading(Appointed):
        looks = 0

        async def validators_at(self, block: int | None = None) -> ValidatorSet:
            self.looks += 1
            if self.looks == 1:
                raise LedgerUnavailable("the run's events are read up to block 5 of 9: the next try goes on")
            return await super().validators_at(block)

    await check_place(
        NodeConfig(role="validator", data=tmp_path), SPEC, VALIDATORS[0].node, Reading(VALIDATOR_OPERATORS[0])
    )
