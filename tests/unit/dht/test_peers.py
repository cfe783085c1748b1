"""Peer addresses, the book of peers, the cache on disk."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from dht.errors import Malformed
from dht.identity import NodeKey
from dht.peers import MAX_CACHED, PeerBook, PeerCache, check_transport, parse_peer, parse_peers
from dht.protocol import skew_of

NODE = NodeKey(b"n" * 32).node
RELAY = NodeKey(b"r" * 32).node


@pytest.mark.parametrize(
    "transport",
    [
        "/ip4/1.2.3.4/tcp/31337",
        "/ip6/::1/tcp/1",
        "/dns4/seed.example.org/tcp/443/ws",
        "/dns/localhost/udp/9/quic-v1",
        f"/ip4/1.2.3.4/tcp/1/p2p/{RELAY}/p2p-circuit",
    ],
)
def test_parse_peer__valid(transport: str) -> None:
    peer = parse_peer(f" {transport}/p2p/{NODE}\n")
    assert (peer.transport, peer.node, str(peer)) == (transport, NODE, f"{transport}/p2p/{NODE}")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "does not end in /p2p/"),
        ("/ip4/1.2.3.4/tcp/1", "does not end in /p2p/"),
        (f"/p2p/{NODE}", "is not like"),
        ("/ip4/1.2.3.4/tcp/1/p2p/QmYyQSo1c1Ym7orWxLYvCrM2EmxFTANf8wXmmE7DWjhx5N", "ed25519"),
        ("/ip4/1.2.3.4/tcp/1/p2p/0OIl", "base58"),
        (f"/ip4/1.2.3/tcp/1/p2p/{NODE}", "not an ip4 address"),
        (f"/ip6/x/tcp/1/p2p/{NODE}", "not an ip6 address"),
        (f"/unix/tmp/tcp/1/p2p/{NODE}", "not an ip4, ip6 or dns name"),
        (f"/dns/-bad-/tcp/1/p2p/{NODE}", "not an ip4, ip6 or dns name"),
        (f"/ip4/1.2.3.4/udp/1/p2p/{NODE}", "neither tcp nor udp"),
        (f"/ip4/1.2.3.4/tcp/65536/p2p/{NODE}", "between 0 and 65535"),
        (f"/ip4/1.2.3.4/tcp/٣/p2p/{NODE}", "between 0 and 65535"),
        (f"/ip4/1.2.3.4/tcp/1/p2p/x/p2p-circuit/p2p/{NODE}", "base58|ed25519"),
        ("/ip4/1.2.3.4" * 30, "longer than"),
    ],
)
def test_parse_peer__says_what_is_wrong(text: str, reason: str) -> None:
    with pytest.raises(Malformed, match=reason):
        parse_peer(text)


def test_parse_peers__without_repeats() -> None:
    text = f"/ip4/1.2.3.4/tcp/1/p2p/{NODE}"
    assert len(parse_peers([text, text])) == 1


def test_check_transport__host_and_port() -> None:
    assert check_transport("/ip4/0.0.0.0/tcp/31337") == ("0.0.0.0", 31337)  # noqa: S104 - what a user writes


def test_peer_cache__found_again_newest_first__boot_07(tmp_path: Path) -> None:
    cache = PeerCache(tmp_path / "peers.json")
    for port in (1, 2, 1):
        cache.note(parse_peer(f"/ip4/1.2.3.4/tcp/{port}/p2p/{NODE}"))
    cache.save()
    ports = [address.split("/")[4] for address in PeerCache(tmp_path / "peers.json").addresses()]
    assert ports == ["1", "2"]


def test_peer_cache__is_bounded(tmp_path: Path) -> None:
    cache = PeerCache(tmp_path / "peers.json")
    for port in range(MAX_CACHED + 50):
        cache.note(parse_peer(f"/ip4/1.2.3.4/tcp/{port}/p2p/{NODE}"))
    cache.save()
    assert len(PeerCache(tmp_path / "peers.json").addresses()) == MAX_CACHED


@pytest.mark.parametrize("data", [b"", b"\xff", b"[]", b"{", b'{"x": 1}', b"[" * 10_000, b" " * 10**6])
def test_peer_cache__damaged_file_costs_only_the_cache(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "peers.json").write_bytes(data)
    assert PeerCache(tmp_path / "peers.json").addresses() == []


def test_peer_book__median_skew_ignores_one_wrong_clock__boot_16() -> None:
    book = PeerBook()
    assert book.median_skew() is None
    for number, skew in enumerate((0.1, -0.2, 3600.0)):
        book.note_answer(NodeKey(bytes([number]) * 32).node, round_trip=0.01, skew=skew)
    assert book.median_skew() == 0.1


def test_peer_book__failures_until_an_answer__dht_30() -> None:
    book = PeerBook()
    for _ in range(2):
        book.note_failure(NODE, "dial refused")
    assert (book.get(NODE).failures, book.get(NODE).last_error) == (2, "dial refused")
    book.note_answer(NODE, round_trip=0.5)
    assert (book.get(NODE).failures, book.get(NODE).last_error, book.get(NODE).round_trip) == (0, "", 0.5)


@pytest.mark.parametrize(
    ("told", "skew"), [(1000.5, 0.5), (0.0, None), (-1.0, None), (math.nan, None), (math.inf, None)]
)
def test_skew__of_a_peer_that_tells_the_time__boot_16(told: float, skew: float | None) -> None:
    assert skew_of(told, 1000.0) == skew
