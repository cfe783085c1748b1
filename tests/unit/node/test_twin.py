"""The same key on two machines."""

from __future__ import annotations

import pytest

from dht.encoding import encode
from dht.envelope import Envelope, seal
from dht.identity import NodeKey
from node.twin import TwinFound, check_twin, new_boot
from roles.messages import NodeRecord, nodes_key
from tests.builders import make_spec

SPEC = make_spec()
KEY = NodeKey(b"k" * 32)
EARLIER, LATER = new_boot(1_000), new_boot(2_000)
STARTED = 5_000


def make_record(boot: str) -> NodeRecord:
    return NodeRecord(node=KEY.node, role="worker", software="test", boot=boot)


def make_row(boot: str, *, sequence: int = STARTED + 1, key: NodeKey = KEY) -> Envelope:
    record = make_record(boot).model_copy(update={"node": key.node})
    run = SPEC.run_id
    return seal(
        key,
        run=run,
        kind="node/1",
        record_key=nodes_key(run, "worker"),
        subkey=key.node,
        sequence=sequence,
        expiration=sequence + 90_000,
        payload=encode(record),
    )


def test_check_twin__the_younger_stops__key_05() -> None:
    with pytest.raises(TwinFound, match="key of its own"):
        check_twin([make_row(EARLIER)], spec=SPEC, own=make_record(LATER), since=STARTED)


def test_check_twin__the_elder_goes_on__key_05() -> None:
    check_twin([make_row(LATER)], spec=SPEC, own=make_record(EARLIER), since=STARTED)


def test_check_twin__own_earlier_life_is_no_twin__boot_18() -> None:
    check_twin([make_row(EARLIER, sequence=STARTED - 1)], spec=SPEC, own=make_record(LATER), since=STARTED)


def test_check_twin__own_record_and_strangers_are_none() -> None:
    stranger = make_row(EARLIER, key=NodeKey(b"s" * 32))
    check_twin([make_row(LATER), stranger], spec=SPEC, own=make_record(LATER), since=STARTED)


def test_new_boot__is_what_a_record_takes_and_rises_with_time() -> None:
    assert make_record(new_boot(1_800_000_000_000)).boot < new_boot(1_800_000_000_001)
