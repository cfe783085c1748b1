"""Manifests that must be refused: from strangers, for old steps, or old ones under the name of a new one."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest
from starlette.types import Receive, Scope, Send

from dht.envelope import Envelope, to_bytes
from dht.errors import PeerError, TransportError
from dht.identity import NodeKey
from dht.records import unix_ms
from roles.shardcast.grants import seal_grant
from roles.shardcast.manifest import manifest_digest, seal_manifest
from roles.shardcast.replies import RelayInfo
from tests.unit.roles.shardcast.network import (
    RUN,
    TRAINER,
    WORKER,
    Network,
    make_checkpoint,
    make_envelope,
    make_manifest,
    running_network,
)


async def put(
    network: Network, envelope: Envelope, *, key: NodeKey = TRAINER, name: str | None = None
) -> httpx.Response:
    """Upload a manifest by hand."""
    relay, data = network.infos[0], to_bytes(envelope)
    digest = name or manifest_digest(envelope)
    grant = seal_grant(key, run=RUN, relay=relay.node, blob=digest, size=len(data), now_ms=unix_ms())
    return await network.http.put(f"{relay.url}/manifests/{digest}", content=data, headers={"X-Grant": grant})


def kept(network: Network) -> list[int]:
    return [one.manifest.step for one in network.relays[0].shelf.catalogue]


async def test_put_manifest__of_a_stranger_refused_wgt_05(tmp_path: Path) -> None:
    folder = make_checkpoint(tmp_path / "c")
    forged = seal_manifest(WORKER, make_manifest(folder))
    async with running_network(tmp_path, relays=1) as network:
        assert (await put(network, forged, key=WORKER)).status_code == 403
        assert (await put(network, forged, key=TRAINER)).json()["error"] == "not_allowed"
        bare = await network.http.put(
            f"{network.infos[0].url}/manifests/{manifest_digest(forged)}", content=to_bytes(forged)
        )
        assert bare.json()["error"] == "grant_missing"
        assert kept(network) == []


async def test_put_manifest__older_than_those_kept_refused(tmp_path: Path) -> None:
    async with running_network(tmp_path, relays=1) as network:
        for step in range(10, 15):
            folder = make_checkpoint(tmp_path / f"{step}", size=5000, seed=step)
            await put(network, make_envelope(folder, step=step))
        reply = await put(network, make_envelope(make_checkpoint(tmp_path / "old"), step=3))
        assert (reply.status_code, reply.json()["error"]) == (409, "stale")
        assert kept(network) == [14, 13, 12, 11, 10]


async def test_put_manifest__under_another_digest_refused(tmp_path: Path) -> None:
    folder = make_checkpoint(tmp_path / "c")
    async with running_network(tmp_path, relays=1) as network:
        reply = await put(network, make_envelope(folder), name="0" * 64)
        assert (reply.status_code, reply.json()["error"]) == (400, "wrong_digest")
        assert kept(network) == []


async def test_put_manifest__garbage_refused(tmp_path: Path) -> None:
    async with running_network(tmp_path, relays=1) as network:
        relay = network.infos[0]
        grant = seal_grant(TRAINER, run=RUN, relay=relay.node, blob="0" * 64, size=1000, now_ms=unix_ms())
        url = f"{relay.url}/manifests/{'0' * 64}"
        reply = await network.http.put(url, content=b"\xff" * 1000, headers={"X-Grant": grant})
        assert (reply.status_code, reply.json()["error"]) == (400, "malformed")


async def test_put_manifest__larger_than_the_disk_refused(tmp_path: Path) -> None:
    folder = make_checkpoint(tmp_path / "c")
    async with running_network(tmp_path, relays=1) as network:
        network.relays[0].shelf.store.max_disk = 1000
        assert (await put(network, make_envelope(folder))).json()["error"] == "store_full"
        assert kept(network) == []


async def test_fetch_manifest__an_older_one_under_the_newer_ones_name(tmp_path: Path) -> None:
    """The relay has both, and answers a request for the newer with the older, both signed by the trainer."""
    old, new = make_checkpoint(tmp_path / "1", seed=1), make_checkpoint(tmp_path / "2", seed=2)
    newer = manifest_digest(make_envelope(new, step=2))

    async def rolling_back(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": to_bytes(make_envelope(old))})

    transport = httpx.ASGITransport(rolling_back)
    async with httpx.AsyncClient(transport=transport) as http:
        network = Network(tmp_path, http, None, infos=[RelayInfo(NodeKey(b"r" * 32).node, "http://relay")])  # type: ignore[arg-type]
        client = network.client()
        with pytest.raises(PeerError):
            await client.link.receive_manifest(network.infos[0], newer)
        with pytest.raises(TransportError):
            await client.fetch_checkpoint(newer, tmp_path / "into")
        assert client.link.choice.is_banned(network.infos[0].node)
    assert not (tmp_path / "into").exists()
