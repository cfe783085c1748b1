"""The join string."""

from __future__ import annotations

from pathlib import Path

import pytest

from node.errors import ConfigError
from node.join import JoinString, parse_join, read_join

RUN = "ab" * 32
PEER = "/ip4/127.0.0.1/tcp/31330/p2p/12D3KooWFYKueu8TNC7M47zb5jo64jdEsZvzQ8z4SFdrn1J7Lbc7"
JOIN = JoinString(RUN, peers=(PEER,), rpc=("http://127.0.0.1:8545",), relays=("http://relay.example:80/x?y=1&z=2",))


def test_parse_join__reads_what_str_writes() -> None:
    assert parse_join(str(JOIN)) == JOIN


def test_parse_join__bare_run_id() -> None:
    assert parse_join(RUN) == JoinString(RUN)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("http://example.org", "is not a join string"),
        ("intellect://abc", "is not a join string"),
        (f"intellect://{RUN}?pear=x", "unknown part 'pear'"),
        (f"intellect://{RUN}?peer=10.0.0.1", "is not a peer address"),
        (f"intellect://{RUN}?peer=/ip4/1.2.3.4/tcp/1/p2p/nobody", "is not a peer address"),
        (f"intellect://{RUN}?peer=/ip4/999.2.3.4/tcp/1/p2p/{PEER[-52:]}", "is not an ip4 address"),
        (f"intellect://{RUN}?rpc=ftp://x", "is not an address like http"),
        (f"intellect://{RUN}?relay=http://:80", "is not an address like http"),
        (f"intellect://[{RUN}", "is not a join string"),
        (f"intellect://{RUN}?" + "&".join(["rpc=http://a"] * 65), "more than 64 parts"),
    ],
)
def test_parse_join__wrong_part_is_named(text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        parse_join(text)


def test_read_join__from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "join"
    path.write_text(f"{JOIN}\n# handed out by the operator\n")
    assert read_join(str(path)) == JOIN


@pytest.mark.parametrize("name", ["none", "", "a" * 30_000, "a\0b"])
def test_read_join__neither_string_nor_file(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match=r"neither a join string .* nor a file"):
        read_join(str(tmp_path / name))
