"""Invalid grants of every kind: each is refused by name, and store and quota are unchanged."""

from __future__ import annotations

import asyncio
import base64
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import httpx
import pytest

from dht.encoding import encode, sha256
from dht.envelope import Envelope, seal, to_bytes
from dht.identity import NodeKey
from roles.messages import UploadGrant, place_of, subkey_for
from roles.relay import RelaySettings
from roles.relay.limits import GrantBook, Quota
from roles.relay.refusal import Refusal
from tests.unit.roles.shardcast.network import (
    RUN,
    TRAINER,
    WORKER,
    Network,
    make_checkpoint,
    make_manifest,
    running_network,
    wait_until,
)
from tests.unit.roles.shardcast.network import make_envelope as seal_checkpoint

DATA = b"rollouts" * 100
STRANGER = NodeKey(b"s" * 32)


def now_ms() -> int:
    return int(time.time() * 1000)


def make_grant(network: Network, *, key: NodeKey = WORKER, run: str = RUN, **changes: object) -> str:
    """A valid grant for DATA at the first relay, except for the changes."""
    row = {"sequence": now_ms(), "expiration": now_ms() + 300_000} | {
        name: changes.pop(name) for name in ("sequence", "expiration", "record_key") if name in changes
    }
    fields = {"relay": network.infos[0].node, "blob": sha256(DATA), "size": len(DATA), "nonce": "0" * 32} | changes
    grant = UploadGrant(**fields)  # type: ignore[arg-type]
    place = place_of(grant, run=run, buckets=1)[0]
    sealed = seal(
        key,
        run=run,
        kind="grant/1",
        record_key=str(row.pop("record_key", place)),
        subkey=subkey_for(grant, run=run, signer=key.node, buckets=1),
        payload=encode(grant),
        **row,  # type: ignore[arg-type]
    )
    return base64.b64encode(to_bytes(sealed)).decode()


async def upload(network: Network, grant: str, *, data: bytes = DATA, digest: str | None = None) -> httpx.Response:
    url = f"{network.infos[0].url}/blobs/{digest or sha256(DATA)}"
    return await network.http.put(url, content=data, headers={"X-Grant": grant})


ABUSES: dict[str, tuple[Callable[[Network], str], int, str]] = {
    "expired": (lambda n: make_grant(n, expiration=now_ms() - 1), 403, "grant_expired"),
    "too long": (lambda n: make_grant(n, expiration=now_ms() + 700_000), 403, "grant_too_long"),
    "older than the relay": (lambda n: make_grant(n, sequence=now_ms() - 3_600_000), 403, "grant_stale"),
    "for another relay": (lambda n: make_grant(n, relay=STRANGER.node), 403, "grant_other_relay"),
    "for another blob": (lambda n: make_grant(n, blob="0" * 64), 403, "grant_other_blob"),
    "for another length": (lambda n: make_grant(n, size=5), 400, "grant_wrong_length"),
    "of a non-member": (lambda n: make_grant(n, key=STRANGER), 403, "not_member"),
    "of another run": (lambda n: make_grant(n, run="cd" * 32), 400, "malformed"),
    "under another key": (lambda n: make_grant(n, record_key="elsewhere"), 400, "malformed"),
    "not base64": (lambda n: "%%%", 400, "malformed"),
    "not an envelope": (lambda n: base64.b64encode(b"x" * 100).decode(), 400, "malformed"),
    "too long a header": (lambda n: "A" * 8000, 400, "malformed"),
    "forged": (lambda n: forge(make_grant(n)), 400, "malformed"),
}


def forge(header: str) -> str:
    raw = bytearray(base64.b64decode(header))
    raw[-1] ^= 1
    return base64.b64encode(bytes(raw)).decode()


@pytest.mark.parametrize("name", ABUSES)
async def test_grant__refused(name: str, tmp_path: Path) -> None:
    make, status, code = ABUSES[name]
    async with running_network(tmp_path, relays=1) as network:
        reply = await upload(network, make(network))
        assert (reply.status_code, reply.json()["error"]) == (status, code)
        store = network.relays[0].shelf.store
        assert (len(store), store.used, store._reserved) == (0, 0, 0)
        assert (await upload(network, make_grant(network))).status_code == 201  # the honest one still goes through


async def test_grant__replayed__key_08(tmp_path: Path) -> None:
    async with running_network(tmp_path, relays=1) as network:
        grant = make_grant(network)
        assert (await upload(network, grant)).status_code == 201
        network.relays[0].shelf.store.discard(sha256(DATA))
        reply = await upload(network, grant)
        assert (reply.status_code, reply.json()["error"]) == (409, "grant_used")
        assert len(network.relays[0].shelf.store) == 0


async def test_grant__spent_by_wrong_bytes_too(tmp_path: Path) -> None:
    async with running_network(tmp_path, relays=1) as network:
        grant = make_grant(network)
        reply = await upload(network, grant, data=b"x" * len(DATA))
        assert (reply.status_code, reply.json()["error"]) == (400, "wrong_bytes")
        assert (await upload(network, grant)).json()["error"] == "grant_used"
        assert network.relays[0].shelf.store.used == 0


async def test_quota__of_one_node_only(tmp_path: Path) -> None:
    other = NodeKey(b"o" * 32)
    async with running_network(tmp_path, relays=0) as network:
        members = {WORKER.node, other.node}
        await network.add_relay(settings=RelaySettings(quota_bytes=8192), is_member=lambda node: node in members)
        codes = []
        for data in (b"1" * 4000, b"2" * 4000, b"3" * 4000):
            grant = make_grant(network, blob=sha256(data), size=len(data), nonce=sha256(data)[:32])
            codes.append((await upload(network, grant, data=data, digest=sha256(data))).status_code)
        assert codes == [201, 201, 429]
        grant = make_grant(network, key=other)
        assert (await upload(network, grant)).status_code == 201


async def test_quota__uploads_are_counted_however_small_they_are(tmp_path: Path) -> None:
    async with running_network(tmp_path, relays=0) as network:
        await network.add_relay(settings=RelaySettings(quota_uploads=2))
        codes = []
        for data in (b"1", b"2", b"3"):
            grant = make_grant(network, blob=sha256(data), size=1, nonce=sha256(data)[:32])
            codes.append((await upload(network, grant, data=data, digest=sha256(data))).status_code)
        assert codes == [201, 201, 429]


def test_quota__begins_anew_with_each_window() -> None:
    now = {"seconds": 0.0}
    quota = Quota(limit=2**20, uploads=1, seconds=600.0, clock=lambda: now["seconds"])
    quota.charge(WORKER.node, 1)
    now["seconds"] = 599.0
    with pytest.raises(Refusal, match="quota"):
        quota.charge(WORKER.node, 1)
    now["seconds"] = 600.0
    quota.charge(WORKER.node, 1)


async def test_quota__what_never_arrived_of_an_upload_is_given_back(tmp_path: Path) -> None:
    data = b"r" * 8000
    async with running_network(tmp_path, relays=0) as network:
        relay = await network.add_relay(settings=RelaySettings(quota_bytes=8192))
        _, writer = await raw_upload(network, data[:100], of=data)
        await wait_until(lambda: relay.shelf.store._reserved == len(data))
        writer.close()
        await wait_until(lambda: relay.shelf.store._reserved == 0)
        again = make_grant(network, blob=sha256(data), size=len(data), nonce="1" * 32)
        assert (await upload(network, again, data=data, digest=sha256(data))).status_code == 201


async def test_quota__trainers_state_has_a_bound_of_its_own(tmp_path: Path) -> None:
    async with running_network(tmp_path, relays=0) as network:
        settings = RelaySettings(max_disk=100_000, quota_bytes=8192)
        await network.add_relay(settings=settings)
        codes = []
        for number in range(6):
            data = bytes([number]) * 9000
            grant = make_grant(network, key=TRAINER, blob=sha256(data), size=len(data), nonce=sha256(data)[:32])
            codes.append((await upload(network, grant, data=data, digest=sha256(data))).status_code)
        assert codes == [201] * 5 + [429]
        assert network.relays[0].shelf.store.used == 45_000 <= settings.state_bytes
        assert (await upload(network, make_grant(network))).status_code == 201  # a member's own is untouched


async def test_upload__too_large_for_a_member(tmp_path: Path) -> None:
    async with running_network(tmp_path, relays=0) as network:
        await network.add_relay(settings=RelaySettings(max_blob=100))
        reply = await upload(network, make_grant(network))
        assert (reply.status_code, reply.json()["error"]) == (413, "too_large")


async def test_upload__shard_of_another_length_than_its_manifest_says(tmp_path: Path) -> None:
    folder = make_checkpoint(tmp_path / "c")
    async with running_network(tmp_path, relays=1) as network:
        await network.client(TRAINER).link.send_manifest(network.infos[0], seal_checkpoint(folder))
        shard = make_manifest(folder).shards[0]
        grant = make_grant(network, key=TRAINER, blob=shard, size=len(DATA))
        reply = await upload(network, grant, digest=shard)
        assert (reply.status_code, reply.json()["error"]) == (400, "wrong_length")


async def raw_upload(
    network: Network, sent: bytes, *, of: bytes = DATA
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """An upload that declares one length and sends something else; the client's library refuses to lie like this."""
    url = httpx.URL(network.infos[0].url)
    reader, writer = await asyncio.open_connection(url.host, url.port)
    grant = make_grant(network, blob=sha256(of), size=len(of))
    head = f"PUT /blobs/{sha256(of)} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(of)}\r\nX-Grant: {grant}\r\n\r\n"
    writer.write(head.encode() + sent)
    await writer.drain()
    return reader, writer


async def test_upload__cut_off_in_the_middle(tmp_path: Path) -> None:
    async with running_network(tmp_path, relays=1) as network:
        store = network.relays[0].shelf.store
        _, writer = await raw_upload(network, DATA[:100])
        await wait_until(lambda: store._reserved == len(DATA))
        writer.close()
        await wait_until(lambda: store._reserved == 0)
        assert (store.used, len(store)) == (0, 0)


async def test_upload__more_than_declared_is_no_part_of_the_blob(tmp_path: Path) -> None:
    async with running_network(tmp_path, relays=1) as network:
        reader, writer = await raw_upload(network, DATA + b"more")
        assert b"201" in await reader.readline()
        assert network.relays[0].shelf.store.used == len(DATA)
        writer.close()


async def test_upload__without_a_length(tmp_path: Path) -> None:
    async def chunks() -> AsyncIterator[bytes]:
        yield DATA

    async with running_network(tmp_path, relays=1) as network:
        url = f"{network.infos[0].url}/blobs/{sha256(DATA)}"
        reply = await network.http.put(url, content=chunks(), headers={"X-Grant": make_grant(network)})
        assert (reply.status_code, reply.json()["error"]) == (411, "length_required")


async def test_grant__relay_whose_clock_was_set_back_takes_fresh_ones() -> None:
    """It started an hour ahead. Judged by that start, every upload of the next hour would be stale."""
    now = {"ms": 7_200_000}
    book = GrantBook("12D3KooWrelay", clock=lambda: now["ms"])
    grant = UploadGrant.model_construct(relay="12D3KooWrelay", blob="ab" * 32, size=3, nonce="0" * 32)
    now["ms"] -= 3_600_000
    row = make_envelope(sequence=now["ms"], expiration=now["ms"] + 60_000)
    book.check(row, grant, blob="ab" * 32, size=3)
    book.use(row, grant)
    with pytest.raises(Refusal, match="used"):
        book.check(row, grant, blob="ab" * 32, size=3)


def make_envelope(*, sequence: int, expiration: int) -> Envelope:
    return Envelope(RUN, "grant/1", "k", WORKER.node, sequence, expiration, b"", b"", b"")
