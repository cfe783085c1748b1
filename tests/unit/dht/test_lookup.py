"""Which peers to ask."""

from __future__ import annotations

import random

import pytest

from dht.bare import DHTID, PeerID
from dht.identity import NodeKey
from dht.lookup import ANCHORS, plan_calls, with_anchors
from dht.places import place_of_peer
from dht.protocol import REQUEST_BYTES, _parts

REPLICAS = {key: [f"peer{(key + step) % 8}" for step in range(5)] for key in range(12)}


def peer(number: int) -> PeerID:
    return PeerID.from_base58(NodeKey(bytes([number]) * 32).node)


def test_with_anchors__ids_made_to_stand_nearest_cannot_keep_the_operators_out() -> None:
    key = DHTID.generate("submissions")
    ours = [peer(number) for number in range(100, 108)]
    made = sorted(map(peer, range(1, 90)), key=lambda each: place_of_peer(each).xor_distance(key))[:5]
    replicas = with_anchors(key, made, ours)
    assert replicas[:5] == made
    assert len(replicas) == 5 + ANCHORS
    nearest = sorted(ours, key=lambda each: place_of_peer(each).xor_distance(key))[:ANCHORS]
    assert replicas[5:] == nearest
    assert with_anchors(key, made[:3] + ours[:2], ours) == made[:3] + ours[:2]  # they are among the nearest already
    assert with_anchors(key, made, []) == made


@pytest.mark.parametrize("copies", [1, 2, 5, 9])
def test_plan_calls__every_key_gets_its_copies(copies: int) -> None:
    plan = plan_calls(REPLICAS, dict.fromkeys(REPLICAS, copies), random.Random(1))
    for key, peers in REPLICAS.items():
        asked = [peer for peer, keys in plan.items() if key in keys]
        assert len(asked) == min(copies, 5)
        assert set(asked) <= set(peers)


def test_plan_calls__few_peers_and_not_always_the_same() -> None:
    plans = [plan_calls(REPLICAS, dict.fromkeys(REPLICAS, 1), random.Random(seed)) for seed in range(40)]
    assert max(map(len, plans)) <= 4
    assert len({peer for plan in plans for peer in plan}) == 8


def test_plan_calls__nothing_wanted_or_nobody_known() -> None:
    assert plan_calls(REPLICAS, dict.fromkeys(REPLICAS, 0), random.Random(1)) == {}
    assert plan_calls({1: []}, {1: 3}, random.Random(1)) == {}


def test_parts__requests_stay_small__dht_10() -> None:
    sizes = [REQUEST_BYTES // 3] * 7 + [REQUEST_BYTES * 2, 1]
    parts = [sizes[part] for part in _parts(sizes)]
    assert [size for part in parts for size in part] == sizes
    assert all(sum(part) <= REQUEST_BYTES or len(part) == 1 for part in parts)
    assert _parts([]) == []
