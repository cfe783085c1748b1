"""`intellect-node shardcast`: what is published can be fetched, and wrong usage gives a sentence."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path

import pytest

from dht.identity import NodeKey
from dht.locks import StartError, locked
from node.commands.shardcast import _get, _parse, _relay, _serve
from node.errors import UsageError
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


def make_folder(path: Path, *inside: str) -> Path:
    for name in inside:
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_bytes(b"x")
    return path


@pytest.mark.parametrize(
    ("published", "said"),
    [
        ("nothing", "is not there"),
        ("folder/model.bin", "is a file"),
        ("folder", r"has folders in it \(shards, tokens\)"),
    ],
)
async def test_serve__what_readers_would_not_get_is_said_before_anything_listens(
    tmp_path: Path, published: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    make_folder(tmp_path / "folder", "model.bin", "shards/1", "tokens/2", ".cache/3")
    words = ["serve", str(tmp_path / published), "--key", str(tmp_path / "key"), "--data", str(tmp_path / "data")]
    with pytest.raises(UsageError, match=said):
        await _serve(_parse(words))
    assert not capsys.readouterr().out
    assert os.listdir(tmp_path) == ["folder"]


async def test_relay__one_process_has_a_folder(tmp_path: Path) -> None:
    words = ["relay", "--publisher", NodeKey.generate().node, "--data", str(tmp_path / "data")]
    with (
        locked(tmp_path / "data" / "node.lock", "the folder"),
        pytest.raises(StartError, match=r"folder .*data \(--data names another\) is in use"),
    ):
        await _relay(_parse(words))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["serve"], "needs a folder"),
        (["relay"], "needs --publisher"),
        (["get", "into", "--publisher", "x"], "needs --relay"),
        (["get", "--follow"], "needs a folder"),
        (["get", "into", "--publisher", "x", "--manifest", "zz"], "--manifest zz: the digest that serve prints"),
        (["get", "into", "--upload-limit", "3"], "'3' is no limit: a whole number of Mbit/s, at least 4, or 0"),
    ],
)
def test_parse__says_what_is_missing(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        _parse(words)
    assert said in capsys.readouterr().err
