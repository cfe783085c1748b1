"""`intellect-node shardcast`: what was published here is fetched there, and wrong usage is a sentence."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from dht.identity import NodeKey
from node.commands.shardcast import _get, _parse, _relay, _serve
from tests.unit.roles.shardcast.network import make_checkpoint, wait_until


async def test_serve_relay_get__a_folder_goes_the_whole_way(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, heard = make_checkpoint(tmp_path / "c"), list[dict[str, object]]()

    def said(name: str) -> list[dict[str, object]]:
        lines = capsys.readouterr().out.splitlines()
        heard.extend(json.loads(line) for line in lines if line.startswith("{"))  # the rest is the log
        return [fields for fields in heard if name in fields]

    async with asyncio.TaskGroup() as group:
        serve = ["serve", str(folder), "--key", str(tmp_path / "key"), "--data", str(tmp_path / "origin"), "--json"]
        serving = group.create_task(_serve(_parse(serve)))
        await wait_until(lambda: bool(said("manifest")))
        publisher = NodeKey.load(tmp_path / "key").node
        origin, manifest = said("url")[0]["url"], said("manifest")[0]["manifest"]
        relay = ["relay", "--publisher", publisher, "--relay", str(origin), "--data", str(tmp_path / "relay"), "--json"]
        relaying = group.create_task(_relay(_parse(relay)))
        await wait_until(lambda: len(said("url")) == 2)
        url = str(said("url")[1]["url"])
        words = [*("--publisher", publisher, "--relay", url, "--manifest", str(manifest), "--json")]
        await _get(_parse(["get", str(tmp_path / "into"), *words]))
        serving.cancel()
        relaying.cancel()
    fetched = tmp_path / "into" / str(manifest)
    assert (fetched / "model.safetensors").read_bytes() == (folder / "model.safetensors").read_bytes()
    assert said("path")[0] == {"path": str(fetched), "manifest": manifest}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["serve"], "needs a folder"),
        (["relay"], "needs --publisher"),
        (["get", "into", "--publisher", "x"], "needs --relay"),
        (["get", "--follow"], "needs a folder"),
        (["get", "into", "--upload-limit", "3"], "'3' is no limit: a whole number of Mbit/s, at least 4, or 0"),
    ],
)
def test_parse__says_what_is_missing(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        _parse(words)
    assert said in capsys.readouterr().err
