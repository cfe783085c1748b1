"""The list of runs for somebody looking for one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from node.cli import main
from node.commands.runs import format_run
from node.listing import Listing, describe_run
from roles.spec import GpuSpec, RequirementsSpec
from tests.builders import make_spec

SPEC = make_spec(requirements=RequirementsSpec(gpus=(GpuSpec(models=("H100",)),), ram_gb=16))
RUN = Listing(
    run="ab" * 32,
    state="open",
    step=17,
    owner="0x" + "11" * 20,
    trainers=1,
    validators=3,
    quorum=2,
    registered=4,
    reward=25 * 10**17,
    min_stake=10**17,
    token=None,
    about=describe_run(SPEC),
)


def test_format_run__reward_stake_size_and_requirements() -> None:
    said = "\n".join(format_run(RUN))
    for part in (
        "step 17",
        "2.5 eth an epoch",
        "a stake of 0.1 eth",
        "tiny (",
        "needs: 1 x H100, 16 GB memory",
        "quorum 2",
    ):
        assert part in said


def test_format_run__a_spec_that_is_not_known_is_not_invented() -> None:
    bare = replace(RUN, about=None, reward=0, min_stake=0)
    assert len(format_run(bare)) == 2
    assert "nothing is paid" in format_run(bare)[1]
    assert "stake" not in format_run(bare)[1]


@pytest.mark.parametrize(("state", "said"), [("not started", "not started"), ("ended", "step 17 (ended)")])
def test_format_run__state(state: str, said: str) -> None:
    assert format_run(replace(RUN, state=state))[0].endswith(said)


def test_runs__needs_a_ledger(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["runs"]) == 2
    assert "name the ledger" in capsys.readouterr().err
    assert main(["runs", "--rpc", "http://127.0.0.1:1"]) == 2
    assert "name the contract" in capsys.readouterr().err
