"""Settings: which source wins, and the message for a wrong one."""

from __future__ import annotations

from pathlib import Path

import pytest

from node.errors import ConfigError, UsageError
from node.sources import load_config


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def test_load_config__later_sources_win(tmp_path: Path) -> None:
    file = write(tmp_path / "node.toml", 'role = "relay"\nport = 1\nhttp_port = 1\nstatus_port = 1\n')
    environment = {"INTELLECT_NODE_PORT": "2", "INTELLECT_NODE_HTTP_PORT": "2"}
    config = load_config(file=file, environment=environment, flags={"port": "3", "host": None})
    assert (config.port, config.http_port, config.status_port, config.host) == (3, 2, 1, "127.0.0.1")


def test_load_config__lists_in_the_environment_are_split_at_commas() -> None:
    config = load_config(file=None, environment={"INTELLECT_NODE_RPC": "http://a,http://b"}, flags={"role": "worker"})
    assert config.rpc == ("http://a", "http://b")


def test_load_config__unknown_key_names_the_nearest__pkg_14(tmp_path: Path) -> None:
    file = write(tmp_path / "node.toml", 'role = "relay"\nhtpp_port = 1\n')
    with pytest.raises(UsageError, match=r"unknown setting 'htpp_port'; did you mean http_port\?"):
        load_config(file=file, environment={}, flags={})


def test_load_config__missing_role_says_how_to_give_it() -> None:
    with pytest.raises(UsageError, match="no role given: add --role"):
        load_config(file=None, environment={}, flags={})


def test_load_config__wrong_role_names_the_nearest() -> None:
    with pytest.raises(UsageError, match=r"'wroker' is not one of trainer, worker.*did you mean worker\?"):
        load_config(file=None, environment={}, flags={"role": "wroker"})


def test_load_config__limit_of_the_line_too_small_to_take_part_with() -> None:
    with pytest.raises(UsageError, match="upload_limit: 3 Mbit/s are too few to take part with; at least 4, or 0"):
        load_config(file=None, environment={}, flags={"role": "worker", "upload_limit": "3"})


def test_load_config__empty_data_folder_is_not_the_one_we_are_in() -> None:
    with pytest.raises(UsageError, match=r"setting data: a folder is meant.*\(in INTELLECT_NODE_DATA\)"):
        load_config(file=None, environment={"INTELLECT_NODE_DATA": ""}, flags={"role": "worker"})


@pytest.mark.parametrize("text", ["role = ", "\x00"])
def test_load_config__file_that_is_not_toml(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigError, match="not valid TOML"):
        load_config(file=write(tmp_path / "node.toml", text), environment={}, flags={})


def test_load_config__file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot read the configuration"):
        load_config(file=tmp_path / "none.toml", environment={}, flags={})


def test_every_field_is_described() -> None:
    config = load_config(file=None, environment={}, flags={"role": "worker"})
    for name, field in type(config).model_fields.items():
        assert (field.description or "").endswith("."), name


def test_load_config__an_empty_text_is_nothing_given() -> None:
    config = load_config(file=None, environment={}, flags={"role": "worker", "spec": "", "key": "", "http_url": ""})
    assert (config.spec, config.key, config.http_url) == (None, None, None)
