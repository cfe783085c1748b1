"""The proof of work."""

from __future__ import annotations

import hashlib

from dht.encoding import pack
from roles.shardcast.work import compute_work, is_work_done
from tests.unit.roles.shardcast.network import WORKER


def test_compute_work__leading_zero_bits() -> None:
    counter = compute_work(WORKER.node, 7, bits=10)
    found = hashlib.sha256(pack("sponsor-work/1", WORKER.node, 7, counter)).digest()
    assert int.from_bytes(found, "big") >> 246 == 0
    assert is_work_done(WORKER.node, 7, counter, bits=10)


def test_is_work_done__reject_other_node_nonce_and_nonsense() -> None:
    counter = compute_work(WORKER.node, 7, bits=16)
    assert not is_work_done(WORKER.node, 8, counter)
    assert not is_work_done(WORKER.node[:-1] + "x", 7, counter)
    assert not is_work_done(WORKER.node, 7, -1)
    assert not is_work_done(WORKER.node, 7, 2**64)
