"""Canonical bytes of every kind of message, fixed for good: changing one needs a new version of that kind.

`python tests/vectors/test_messages.py` rewrites `messages.json`; do that only together with a new version.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import pytest

from dht.encoding import Message, decode, encode
from dht.envelope import from_bytes, seal, to_bytes
from dht.identity import NodeKey
from roles.messages import (
    ROW_RULES,
    SHARE_ALL,
    CheckpointDelta,
    CheckpointManifest,
    CheckpointRow,
    FileEntry,
    Head,
    NodeRecord,
    OpenStep,
    Receipt,
    ReceivedShare,
    SealedVerdict,
    StateRef,
    Statistics,
    StrikeRow,
    Submission,
    TallyRow,
    UpgradeRow,
    UploadGrant,
    UsedGroups,
    Verdict,
    open_row,
    place_of,
    subkey_for,
)

FILE = Path(__file__).with_name("messages.json")
RUN, BUCKETS = "ab" * 32, 4
KEY = NodeKey(b"intellect-node test vector key 1")
OTHER = NodeKey(b"intellect-node test vector key 2")
SEQUENCE, EXPIRATION, HINT = 1_700_000_000_000, 1_700_000_060_000, b"hint"


def digits(character: str) -> str:
    """A digest that is easy to recognise."""
    return character * 64


MESSAGES: dict[str, Message] = {
    "node/1": NodeRecord(
        node=KEY.node,
        role="relay",
        addresses=(f"/ip4/192.0.2.1/tcp/31337/p2p/{KEY.node}",),
        http="http://192.0.2.1:8080",
        software="0.1.0",
        hardware='"é" 8 cores',
        load_permille=250,
        policy_step=7,
        disk_free=2**40,
        boot="0123456789abcdef",
    ),
    "head/1": Head(
        term=1,
        step=8,
        policy_step=7,
        manifest=digits("1"),
        groups_wanted=64,
        state="collecting",
        open_steps=(OpenStep(step=8, limit=4, share=SHARE_ALL), OpenStep(step=7, limit=0, share=0)),
    ),
    "checkpoint/1": CheckpointRow(term=1, step=7, manifest=digits("1")),
    "manifest/2": CheckpointManifest(
        run=RUN,
        term=1,
        step=7,
        parent=digits("0"),
        weights=digits("2"),
        files=(FileEntry(name="model.safetensors", size=2048), FileEntry(name="config.json", size=1)),
        shard_size=1024,
        shards=(digits("3"), digits("4"), digits("5")),
        used=(UsedGroups(submission=digits("7"), groups=(0, 3)),),
        state=StateRef(step=5, index=digits("8"), size=900),
    ),
    "delta/1": CheckpointDelta(
        run=RUN,
        term=1,
        step=7,
        target=digits("1"),
        base=digits("0"),
        size=1500,
        shard_size=1024,
        shards=(digits("6"), digits("7")),
    ),
    "submission/1": Submission(
        run=RUN,
        node=KEY.node,
        step=8,
        index=3,
        policy_step=7,
        policy=digits("1"),
        predecessor=digits("0"),
        blob=digits("6"),
        size=4096,
        groups=2,
        completions=16,
        tokens=1234,
    ),
    "verdict/2": Verdict(
        run=RUN,
        submission=digits("7"),
        node=OTHER.node,
        step=8,
        index=3,
        outcome="accept",
        reason=0,
        audited=True,
        tokens=1234,
        statistics=Statistics(
            exponent_mismatches=0, mantissa_mean=1, mantissa_median=2, margin_mean=3, tokens_exact=1000
        ),
        salt="0f" * 16,
        seen=(digits("b")[:32], digits("c")[:32]),
    ),
    "seal/1": SealedVerdict(run=RUN, submission=digits("7"), node=OTHER.node, step=8, seal=digits("b")),
    "receipt/1": Receipt(run=RUN, client=KEY.node, step=7, shares=(ReceivedShare(relay=OTHER.node, size=2049),)),
    "strike/1": StrikeRow(
        run=RUN,
        act="strike",
        node=OTHER.node,
        wallet="0x" + "aB" * 20,
        number=0,
        reason=602,
        evidence=digits("d"),
        size=8192,
        operator="0x" + "cD" * 20,
        signature="0e" * 65,
    ),
    "tally/2": TallyRow(
        run=RUN,
        epoch=2,
        round=0,
        closing_block=100,
        parent_root=digits("8"),
        root=digits("9"),
        total=5678,
        amount=10**20,
        blob=digits("a"),
        size=8192,
        operator="0x" + "cD" * 20,
        signature="0e" * 65,
    ),
    "upgrade/1": UpgradeRow(
        run=RUN, number=2, messages=3, software="1.2.3", step=120, by=1_700_000_000, signature="5" * 130
    ),
    "grant/1": UploadGrant(relay=OTHER.node, blob=digits("6"), size=4096, nonce="f" * 32),
}


def build_vector(kind: str) -> dict[str, str]:
    """What is fixed of a kind's example."""
    message = MESSAGES[kind]
    key, _ = place_of(message, run=RUN, buckets=BUCKETS)
    subkey = subkey_for(message, run=RUN, signer=KEY.node, buckets=BUCKETS)
    row = seal(
        KEY,
        run=RUN,
        kind=kind,
        record_key=key,
        subkey=subkey,
        sequence=SEQUENCE,
        expiration=EXPIRATION,
        payload=encode(message),
        hint=HINT,
    )
    return {
        "payload": encode(message).decode(),
        "key": key,
        "subkey": subkey,
        "digest": row.digest,
        "envelope": to_bytes(row).hex(),
    }


def test_vectors__every_kind_has_one() -> None:
    assert set(MESSAGES) == set(ROW_RULES) == set(json.loads(FILE.read_text()))


@pytest.mark.parametrize("kind", sorted(MESSAGES))
def test_vectors__bytes_are_as_they_were(kind: str) -> None:
    assert build_vector(kind) == json.loads(FILE.read_text())[kind]


@pytest.mark.parametrize("kind", sorted(MESSAGES))
def test_vectors__bytes_read_back(kind: str) -> None:
    vector = json.loads(FILE.read_text())[kind]
    row = from_bytes(bytes.fromhex(vector["envelope"]), limit=ROW_RULES[kind].max_bytes)
    assert (row.key, row.subkey, row.digest, row.hint) == (vector["key"], vector["subkey"], vector["digest"], HINT)
    assert decode(type(MESSAGES[kind]), row.payload) == MESSAGES[kind] == open_row(row, run=RUN, buckets=BUCKETS)


if __name__ == "__main__":
    FILE.write_text(json.dumps({kind: build_vector(kind) for kind in sorted(MESSAGES)}, indent=2) + "\n")
