"""Whether contributions match what was accepted: recounted from blobs and chain, and compared with what workers saw."""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass

from benchmarks.chaos.stage import Stage
from dht.encoding import sha256
from dht.envelope import from_bytes
from dht.identity import NodeKey
from ledger.client import LedgerClient
from roles.shardcast.client import RelayClient
from roles.shardcast.relay_http import make_http
from roles.shardcast.replies import RelayInfo
from tests.recount import Fetch, recount

Place = tuple[str, int, int]
"""Node, step, index: credited at most once."""


@dataclass(frozen=True, slots=True)
class Accounts:
    """`counted` and `credited` are tokens by worker: our count, and the ledger's. `lost` was
    accepted but is credited nowhere."""

    tallies: int
    counted: Mapping[str, int]
    credited: Mapping[str, int]
    places: frozenset[Place]

    @property
    def is_equal(self) -> bool:
        """Whether the tokens credited are exactly those earned."""
        return dict(self.counted) == dict(self.credited) and sum(self.counted.values()) > 0

    def lost(self, accepted: Collection[Place], *, until: int) -> list[Place]:
        """Accepted places of steps up to `until` that no tally contains."""
        return sorted(place for place in accepted if place[1] <= until and place not in self.places)


async def count_again(stage: Stage) -> Accounts:
    """Fetch every tally and every blob in it. Raises AssertionError for a credit without a quorum's
    signatures, or a double one."""
    async with _records(stage) as (ledger, fetch):
        roots = await ledger.final_roots()
        counted, credited = await recount(stage.prepared.spec, roots, fetch)
        places = frozenset([place for root in roots for place in _places(await fetch(root.blob), root.blob)])
    return Accounts(len(roots), counted, credited, places)


async def credited_places(stage: Stage) -> frozenset[Place]:
    """The places credited in the final tallies so far."""
    async with _records(stage) as (ledger, fetch):
        found = [_places(await fetch(root.blob), root.blob) for root in await ledger.final_roots()]
    return frozenset(place for places in found for place in places)


@asynccontextmanager
async def _records(stage: Stage) -> AsyncIterator[tuple[LedgerClient, Fetch]]:
    """The run's ledger, and a function that fetches a blob from any relay, as anybody may."""
    spec = stage.prepared.spec
    ledger = await LedgerClient.connect([stage.prepared.rpc], contract=spec.ledger.contract, run=spec.run_id)
    async with ledger, make_http() as http:
        relays = [RelayInfo(relay.key.node, f"http://127.0.0.1:{relay.http_port}") for relay in stage.plan.relays]
        client = RelayClient(NodeKey.generate(), run=spec.run_id, trainers=(), relays=lambda: relays, http=http)

        async def fetch(digest: str) -> bytes:
            return await client.get(digest, limit=2**25)

        yield ledger, fetch


def _places(blob: bytes, digest: str) -> list[Place]:
    assert sha256(blob) == digest
    found = []
    for item in json.loads(zlib.decompress(blob))["items"]:
        submission = json.loads(from_bytes(base64.b64decode(item["submission"]), limit=16_384).payload)
        found.append((submission["node"], submission["step"], submission["index"]))
    return found
