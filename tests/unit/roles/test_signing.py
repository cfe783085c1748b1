"""A validator's signing, and what happens when the ledger no longer lists it."""

from __future__ import annotations

from pathlib import Path

import pytest

from dht.records import unix_ms
from roles.rules import Reason
from roles.spec import CheckSpec
from roles.validator.records import JudgedRows
from roles.validator.signing import Signing
from roles.verification import Finding
from roles.worker.generation import submission_digest
from tests.builders import VALIDATORS, World, make_spec, make_submission, register_workers
from tests.unit.roles.validator_network import ValidatorNetwork


@pytest.mark.parametrize("seals", [False, True])
async def test_sign__removed_while_it_judged__says_it_and_goes_on(tmp_path: Path, seals: bool) -> None:
    network = ValidatorNetwork(make_spec(checks=CheckSpec(seals=seals)), tmp_path)
    await register_workers(network.chain, network.spec)
    await network.remove_validator(2)
    await network.eye.look()
    world, records = World(network.spec, network.trusted), JudgedRows(tmp_path / "judged.sqlite")
    began = unix_ms()
    signing = Signing(
        trusted=network.trusted,
        observer=network.eye,
        voice=network.voice(VALIDATORS[2]),
        records=records,
        clock=lambda: began + 30 * (unix_ms() - began),
    )
    submission, before = make_submission(world), world.state()
    digest = submission_digest(submission)
    finding = Finding("accept", Reason.ACCEPTED, audited=True)
    verdict = await signing.sign(submission, digest, finding, began=began)
    assert (verdict.submission, verdict.outcome) == (digest, "accept")
    assert world.state() == before  # its word counts no more, with itself neither
    records.close()
    network.compute.close()
