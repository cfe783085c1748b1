"""A run over a data set, with a tool: every node gets the file from a relay by its digest, and training uses it."""

from __future__ import annotations

import json
from importlib import resources
from pathlib import Path

import pytest

from node.testnet.plan import TestnetOptions
from roles.tasks import load_task
from tests.testnet.conftest import running_network

pytestmark = [pytest.mark.testnet, pytest.mark.slow, pytest.mark.timeout(300)]

DRAFT = """
[[tasks]]
name = "match"
file = "sums.jsonl"
[tasks.parameters]
after = "#"

[tool]
name = "calculator"
max_calls = 4
max_tokens = 4
"""


def write_draft(folder: Path) -> Path:
    """The built-in run over 64 sums from a file, whose policy has a calculator."""
    sums = load_task("arithmetic", {"size": 64})
    rows = [{"prompt": sums.prompt(number), "answer": answer(sums.prompt(number))} for number in range(sums.size)]
    (folder / "sums.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    built_in = resources.files("node.testnet").joinpath("run.toml").read_text()
    (folder / "run.toml").write_text(built_in.replace('[[tasks]]\nname = "arithmetic"\n', DRAFT))
    return folder / "run.toml"


def answer(prompt: str) -> str:
    """What `7+4>` comes to."""
    return str(sum(map(int, prompt.rstrip(">").split("+"))))


async def test_data_set__reaches_every_node_and_is_trained_on(tmp_path: Path) -> None:
    options = TestnetOptions(
        directory=tmp_path / "net", workers=1, validators=1, relays=2, steps=2, draft=write_draft(tmp_path)
    )
    async with running_network(options) as network:
        await network.start_all()
        fetched = await network.wait_for("worker-1", "data_set.fetched")
        assert fetched["digest"] == network.prepared.spec.tasks[0].parameters["data"]
        assert fetched["size"] == (tmp_path / "sums.jsonl").stat().st_size
        await network.wait_for("trainer", "step.trained", where=lambda event: event["step"] == 1, seconds=180)
        accepted = await network.wait_for("worker-1", "submission.accepted")
        assert accepted["tokens"] > 0
        assert not [event for event in network.said("worker-1") if event["event"] == "submission.refused"]
        closed = await network.wait_for("trainer", "batch.closed")
        assert closed["groups"] + closed["dropped"] > 0
