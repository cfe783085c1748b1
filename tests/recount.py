"""Recounts contributions from blobs alone, without the product's tally code: only envelopes, JSON and files.

Taken from the ledger: the run's validators and quorum, and each final root with the digest of its tally blob.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from dht.encoding import sha256
from dht.envelope import Envelope, from_bytes
from ledger.records import FinalRoot
from roles.rollouts.schema import RolloutLimits, read_rollouts
from roles.spec import RunSpec

Fetch = Callable[[str], Awaitable[bytes]]
LIMITS = RolloutLimits(
    max_bytes=2**24,
    max_rows=4096,
    max_prompt_tokens=4096,
    max_output_tokens=4096,
    vocabulary=2**20,
    max_proof_bytes=2**20,
)


async def recount(spec: RunSpec, roots: Sequence[FinalRoot], fetch: Fetch) -> tuple[Counter[str], Counter[str]]:
    """Tokens by worker, as counted here and as in the last root's leaves. Asserts every signature, digest and quorum,
    and that no place counts twice."""
    tokens: Counter[str] = Counter()
    leaves: Counter[str] = Counter()
    places: set[tuple[str, int, int]] = set()
    for root in roots:
        blob = await fetch(root.blob)
        assert sha256(blob) == root.blob
        body = json.loads(zlib.decompress(blob))
        for item in body["items"]:
            submission = await _checked(spec, item, fetch)
            place = submission["node"], submission["step"], submission["index"]
            assert place not in places, f"{place} is credited twice"
            places.add(place)
            tokens[submission["node"]] += submission["tokens"]
        leaves = Counter()
        for leaf in body["leaves"]:
            if leaf["role"] == "worker":
                leaves[leaf["node"]] += leaf["units"]
    return tokens, leaves


async def _checked(spec: RunSpec, item: dict[str, Any], fetch: Fetch) -> dict[str, Any]:
    """A submission accepted by a quorum of distinct validators, with the token count of its blob."""
    row = _opened(spec, item["submission"])
    submission: dict[str, Any] = json.loads(row.payload)
    assert row.signer == submission["node"]
    accepting = set()
    for text in item["verdicts"]:
        vote = _opened(spec, text)
        verdict = json.loads(vote.payload)
        assert (verdict["submission"], verdict["outcome"]) == (row.digest, "accept")
        accepting.add(vote.signer)
    assert accepting <= {validator.node for validator in spec.validators}
    assert len(accepting) >= spec.quorum
    blob = await fetch(submission["blob"])
    assert sha256(blob) == submission["blob"]
    file = read_rollouts(blob, LIMITS)
    assert sum(len(line.output) for line in file.rows) == submission["tokens"]
    assert (file.node, file.step, file.index) == (submission["node"], submission["step"], submission["index"])
    return submission


def _opened(spec: RunSpec, text: str) -> Envelope:
    row = from_bytes(base64.b64decode(text), limit=16_384)  # checks the signature
    assert row.run == spec.run_id
    return row
