"""The commands that the README and docs/contribute.md show, run on a live network: each gives the documented result."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from ledger.keystore import save_key
from tests.testnet.conftest import Network

pytestmark = [pytest.mark.testnet, pytest.mark.slow, pytest.mark.no_cover, pytest.mark.timeout(600)]

SIZES = {"workers": 1, "validators": 1, "relays": 2, "steps": 60}


async def type_in(home: Path, *words: str) -> tuple[int, str]:
    """Run the program as another user of this machine would, without our settings. Returns exit status and output."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("INTELLECT_NODE")}
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "node", *words),
        env={**environment, "HOME": str(home)},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    async with asyncio.timeout(240):
        output, errors = await process.communicate()
    assert b"Traceback" not in errors
    assert process.returncode is not None
    return process.returncode, output.decode()


async def ask(home: Path, *words: str) -> Any:
    """The JSON answer of a command that succeeds."""
    code, said = await type_in(home, *words, "--json")
    assert code == 0, said
    return json.loads(said)


@pytest.mark.parametrize("network", [SIZES], indirect=True)
async def test_commands__answer_what_the_documents_say(network: Network, tmp_path: Path) -> None:
    await network.start_all()
    await network.wait_for("trainer", "checkpoint.committed", where=lambda event: event["step"] == 2, seconds=300)
    run, worker = str(network.prepared.join_file), network.node("worker-1")
    wallet = "0x52908400098527886E0F7030069857D2E4169EE7"
    doctor, nodes, runs, earned, spec, status = await asyncio.gather(
        type_in(tmp_path, "doctor", "--join", run, "--wallet", wallet),
        ask(tmp_path, "nodes", "--join", run),
        ask(tmp_path, "runs", "--join", run),
        ask(tmp_path, "contributions", "--join", run),
        ask(tmp_path, "run", "show", "--join", run),
        ask(tmp_path, "status", "--data", str(worker.home)),
    )
    assert doctor[0] == 0, doctor[1]
    assert doctor[1].count("ok      seed") == 2
    for said in ("ok      relay", "ok      ledger", "ok      software", "ok      requirements", "ready"):
        assert said in doctor[1]
    assert {node["role"]: node["state"] for node in nodes} == dict.fromkeys(
        ("trainer", "validator", "relay", "worker"), "online"
    )
    (shown,) = [node for node in nodes if node["role"] == "worker"]
    assert (shown["node"], shown["share"], shown["strikes"]) == (worker.key.node, 1.0, 0)
    assert "cores" in shown["hardware"]
    (listed,) = runs
    assert (listed["run"], listed["state"]) == (network.prepared.spec.run_id, "open")
    assert listed["about"]["requirements"] == "none"
    assert sum(row["units"] + row["pending"] for row in earned["totals"]) > 0
    assert spec["kind"] == "run/1"
    assert (status["role"], status["phase"]) == ("worker", "running")
    await ask_for_an_upgrade(network, tmp_path)


async def ask_for_an_upgrade(network: Network, home: Path) -> None:
    """The owner makes a demand, every node hears of it, and so does one that joins later."""
    save_key(home / "owner.key", network.plan.owner_key)
    words = ("9.0.0", "--from-step", "999", "--join", str(network.prepared.join_file), "--key", str(home / "owner.key"))
    asked = await ask(home, "run", "upgrade", *words)
    assert (asked["messages"], asked["step"]) == (1, 999)
    said = await network.wait_for("worker-1", "upgrade.needed", seconds=60)
    assert "from step 999 on" in said["why"]
    assert "9.0.0" in (await ask(home, "status", "--data", str(network.node("worker-1").home)))["upgrade"]
