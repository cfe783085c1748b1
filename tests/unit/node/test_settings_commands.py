"""`init` and `config`: what is written can be read back; values in force are shown with their
source, and without secrets."""

from __future__ import annotations

import json
import stat
import tomllib
from pathlib import Path

import pytest

from node.cli import main
from node.commands.init import format_value
from node.commands.settings import add_setting_flags, given_in
from node.config import NodeConfig
from node.parsing import Parser
from node.secrecy import shown_url, shown_value
from node.sources import load_config

KEY = "ab" * 32


def test_init__writes_every_setting_and_is_a_configuration__ux_06(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    flags = ["--role", "relay", "--port", "4001", "--sponsor", "--rpc", "http://a", "--rpc", "http://b"]
    assert main(["init", "relay.toml", *flags]) == 0
    assert "intellect-node --config relay.toml" in capsys.readouterr().out
    path = tmp_path / "relay.toml"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    text = path.read_text()
    assert [
        name for name in NodeConfig.model_fields if f"\n{name} = " not in text and f"\n#{name} = " not in text
    ] == []
    assert tomllib.loads(text) == {"role": "relay", "port": 4001, "sponsor": True, "rpc": ["http://a", "http://b"]}
    config = load_config(file=path, environment={}, flags={})
    assert (config.role, config.port, config.rpc) == ("relay", 4001, ("http://a", "http://b"))


def test_init__every_commented_line_is_valid_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["init", "-"]) == 0
    settings = [
        line.removeprefix("#") for line in capsys.readouterr().out.splitlines() if " = " in line and line[:2] != "# "
    ]
    assert set(tomllib.loads("\n".join(settings))) == set(NodeConfig.model_fields)


def test_init__never_over_an_existing_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "node.toml"
    path.write_text("mine")
    assert main(["init", str(path)]) == 1
    assert "exists already" in capsys.readouterr().err
    assert path.read_text() == "mine"


@pytest.mark.parametrize("value", ['a "b" \\ c', "é", 5, 0.85, True, ("a", "b"), ()])
def test_format_value__is_read_back(value: object) -> None:
    plain = tomllib.loads(f"x = {format_value(value)}")["x"]
    assert (tuple(plain) if isinstance(value, tuple) else plain) == value


def test_config__names_the_source_of_each_value(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "node.toml"
    path.write_text("port = 1\nhttp_port = 2\nstatus_port = 3\n")
    monkeypatch.setenv("INTELLECT_NODE_HTTP_PORT", "20")
    monkeypatch.setenv("INTELLECT_NODE_STATUS_PORT", "30")
    assert main(["config", "--config", str(path), "--status-port", "300", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert {
        name: (shown[name]["value"], shown[name]["source"]) for name in ("port", "http_port", "status_port", "host")
    } == {
        "port": ("1", str(path)),
        "http_port": ("20", "INTELLECT_NODE_HTTP_PORT"),
        "status_port": ("300", "--status-port"),
        "host": ("127.0.0.1", "default"),
    }
    assert list(shown) == list(NodeConfig.model_fields)
    assert main(["config", "--config", str(path)]) == 0
    assert "INTELLECT_NODE_HTTP_PORT" in capsys.readouterr().out


@pytest.mark.parametrize("flag", ["--sponsor", "--archive", "--checkpoint-activations"])
def test_config__a_setting_that_is_on_or_off_is_a_switch(flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", flag, "--json"]) == 0
    name = flag.removeprefix("--").replace("-", "_")
    assert json.loads(capsys.readouterr().out)[name] == {"value": "True", "source": flag}


def test_config__wrong_value_names_its_source(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("INTELLECT_NODE_PORT", "many")
    assert main(["config"]) == 2
    assert "setting port: 'many' is not a whole number (in INTELLECT_NODE_PORT)" in capsys.readouterr().err


@pytest.mark.parametrize("flag", ["--wallet", "--operator-key", "--key", "--wallet-password-file"])
@pytest.mark.parametrize("value", [KEY, f"0x{KEY}"])
def test_config__a_pasted_private_key_is_refused_and_not_repeated(
    flag: str, value: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["config", flag, value]) == 2
    out, err = capsys.readouterr()
    assert "this is a private key itself" in err
    assert KEY not in out + err


def test_config__shows_no_access_key(capsys: pytest.CaptureFixture[str]) -> None:
    join = "intellect://" + KEY + "?rpc=https://node.example/v2/hidden-access"
    assert main(["config", "--rpc", "https://u:hidden-password@chain.example:8545/v3/hidden-key", "--join", join]) == 0
    said = capsys.readouterr().out
    assert "hidden" not in said
    assert "https://chain.example:8545/.." in said


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("http://127.0.0.1:8545", "http://127.0.0.1:8545"),
        ("http://[::1]:8545/", "http://[::1]:8545"),
        ("https://a.example?key=x", "https://a.example/.."),
        ("http://[broken", "an address that cannot be read"),
    ],
)
def test_shown_url(url: str, shown: str) -> None:
    assert shown_url(url) == shown


@pytest.mark.parametrize(("value", "shown"), [(None, "-"), ((), "-"), (("a", "b"), "a, b"), (5, "5"), (False, "False")])
def test_shown_value(value: object, shown: str) -> None:
    assert shown_value(value) == shown


def test_flags__what_is_on_or_off_takes_no_value() -> None:
    """`--checkpoint-activations`, which a trainer that ran out of memory recommends."""
    parser = Parser("intellect-node")
    add_setting_flags(parser)
    names = [name for name, field in NodeConfig.model_fields.items() if field.annotation is bool]
    found = given_in(parser.parse_args([f"--{name.replace('_', '-')}" for name in names]))
    assert found.flags == dict.fromkeys(names, True)
    assert "checkpoint_activations" in names
