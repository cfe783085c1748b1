"""SHARDCAST without a node: publish a folder, fetch what a key published, and find relays by their addresses alone.

A publisher's key names a channel. Relays of that channel accept manifests of that key only, and readers trust nothing
else. No ledger, no DHT. See `roles.shardcast` for an example.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import httpx
import structlog

from dht.encoding import ZERO_DIGEST, decode, digest
from dht.envelope import Envelope
from dht.errors import Malformed, PeerError, TransportError
from dht.identity import NodeId, NodeKey, public_key_of
from roles.messages import CheckpointManifest
from roles.shardcast.assembly import find_newest
from roles.shardcast.client import RelayClient
from roles.shardcast.delta import encode_worthwhile
from roles.shardcast.manifest import (
    build_delta,
    build_manifest,
    check_manifest,
    choose_shard_size,
    manifest_digest,
    seal_manifest,
)
from roles.shardcast.pace import Line
from roles.shardcast.reading import read_status
from roles.shardcast.relay_http import RelayHttp, make_http
from roles.shardcast.replies import Offer, RelayInfo
from roles.shardcast.shards import Layout, is_checkpoint_intact

log = structlog.get_logger("shardcast")

ASK_SECONDS = 10.0
TRY_AGAIN = 60.0
"""Seconds after which a follower retries without news: what failed may succeed now."""
TERM = 1
DELTA = "delta"
NOTHING = -1

Progress = Callable[[int, int], None]
"""Called with the number of bytes that are here, and the total."""


@dataclass(frozen=True, slots=True)
class Published:
    """What readers fetch: the digest of the signed manifest, its step, its bytes, and the
    relays that hold all of it."""

    manifest: str
    step: int
    size: int
    relays: tuple[NodeId, ...]


def channel_of(publisher: NodeId) -> str:
    """The run id of a publisher's channel. Raises Malformed when `publisher` is not the id of a key."""
    public_key_of(publisher)
    return digest("shardcast-channel/1", publisher)


def check_folder(folder: Path) -> None:
    """Check that the folder can be published: a checkpoint is the files of one folder, except hidden ones. Raises
    ValueError for anything else, so that nothing is silently left out."""
    if not folder.is_dir():
        raise ValueError(
            f"a folder of files is published, and {folder} is {'a file' if folder.exists() else 'not there'}"
        )
    inside = sorted(path.name for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))
    if inside:
        raise ValueError(
            f"{folder} has folders in it ({', '.join(inside)}), and a checkpoint is files alone: move them elsewhere, or "
            "publish a folder of the files"
        )


@asynccontextmanager
async def open_channel(
    publisher: NodeId,
    urls: Sequence[str],
    *,
    key: NodeKey | None = None,
    ca: Path | None = None,
    line: Line | None = None,
) -> AsyncIterator[Channel]:
    """Reach a channel through relays, given by their base URLs. `key` signs uploads; only the
    publisher's own key can publish.

    `ca`: a file of certificates to trust besides the system's. `line`: the pace of transfers, `line_of(upload,
    download)` in Mbit/s. Raises BadCertificate, or TransportError when no relay answers.
    """
    async with make_http(ca=ca, line=line) as http:
        run = channel_of(publisher)
        relays = await _introduce(http, urls, run)
        client = RelayClient(key or NodeKey.generate(), run=run, trainers=[publisher], relays=lambda: relays, http=http)
        yield Channel(publisher, client)


class Channel:
    """One publisher's checkpoints on some relays, created by `open_channel`."""

    def __init__(self, publisher: NodeId, client: RelayClient) -> None:
        self.publisher, self.client = publisher, client

    async def publish(self, folder: Path, *, step: int | None = None, base: Path | None = None) -> Published:
        """Sign and upload the files of a folder. Readers may fetch from the first shard on.

        `step`: its number, by default one more than the newest on the relays. `base`: the folder of a previously
        published checkpoint that the relays hold. If the new one differs little from it, only the difference is sent,
        and relays and readers that hold the base rebuild the rest. Raises TransportError when no relay takes it,
        ValueError for a folder without a byte or with sub-folders.
        """
        offers = await self._offers()
        number = max((offer.step for offer in offers), default=NOTHING) + 1 if step is None else step
        manifest = await asyncio.to_thread(self._build, folder, number)
        envelope = seal_manifest(self.client.link.key, manifest)
        with TemporaryDirectory(prefix="shardcast-") as scratch:
            delta = await self._make_delta(folder, envelope, base, offers, Path(scratch)) if base else None
            holders = await self.client.put_checkpoint(envelope, folder, delta=delta, whole=delta is None)
        size = sum(file.size for file in manifest.files)
        return Published(manifest_digest(envelope), number, size, holders)

    async def _make_delta(
        self, folder: Path, target: Envelope, base: Path, offers: Sequence[Offer], scratch: Path
    ) -> tuple[Envelope, Path] | None:
        """The signed row of a delta and the folder of its file. None when relays do not hold the base, or sending the
        folder itself is shorter."""
        known = await self._find(base, offers)
        if known is None:
            log.info("delta.skipped", reason="no relay holds that base")
            return None
        report = await asyncio.to_thread(encode_worthwhile, base, folder, scratch / DELTA)
        if report is None:
            log.info("delta.skipped", reason="too much has changed")
            return None
        manifest = decode(CheckpointManifest, target.payload)
        row = await asyncio.to_thread(
            build_delta,
            scratch / DELTA,
            run=manifest.run,
            term=TERM,
            step=manifest.step,
            target=manifest_digest(target),
            base=known,
            shard_size=choose_shard_size(report.delta_bytes),
        )
        return seal_manifest(self.client.link.key, row), scratch

    async def _find(self, folder: Path, offers: Sequence[Offer]) -> str | None:
        """The manifest digest under which relays hold the folder's contents."""
        for name in dict.fromkeys(offer.manifest for offer in sorted(offers, key=lambda offer: -offer.step)):
            with suppress(PeerError, TransportError):
                envelope = await self.client.fetch_manifest(name)
                manifest = check_manifest(envelope, run=self.client.link.run, trainers=[self.publisher])
                if await asyncio.to_thread(is_checkpoint_intact, folder, Layout(manifest)):
                    return name
        return None

    async def newest(self) -> tuple[str, int] | None:
        """Digest and step of the newest checkpoint for which a relay can show the publisher's signature."""
        for offer in sorted(await self._offers(), key=lambda offer: (offer.term, offer.step), reverse=True):
            try:
                envelope = await self.client.fetch_manifest(offer.manifest)
                manifest = check_manifest(envelope, run=self.client.link.run, trainers=[self.publisher])
            except (PeerError, TransportError):
                continue
            return offer.manifest, manifest.step
        return None

    async def fetch(self, into: Path, *, manifest: str | None = None, progress: Progress | None = None) -> Path:
        """Fetch a checkpoint, by default the newest, to `into/{digest}`. Every byte is verified,
        and a killed fetch resumes.

        A checkpoint in `into` serves as the base of a delta, and an older one than that is not accepted as the newest.
        Raises TransportError when relays do not have it, StoreFull.
        """
        wanted = manifest or await self._newest_for(into)
        return await self.client.fetch_checkpoint(wanted, into, progress=progress, is_durable=True)

    async def follow(self, into: Path, fetched: Callable[[Path], None], *, progress: Progress | None = None) -> None:
        """Fetch each newest checkpoint as it is published, until cancelled. Relays announce it; nothing is polled."""
        done, heard = "", asyncio.Event()
        async with asyncio.TaskGroup() as group:
            group.create_task(self.client.watch(lambda offer: heard.set(), held=lambda: done))
            while True:
                heard.clear()
                try:
                    path = await self.fetch(into, progress=progress)
                except TransportError as error:
                    log.info("channel.waiting", reason=str(error))
                else:
                    if path.name != done:
                        done = path.name
                        fetched(path)
                with suppress(TimeoutError):
                    async with asyncio.timeout(TRY_AGAIN):
                        await heard.wait()

    async def _newest_for(self, into: Path) -> str:
        newest = await self.newest()
        held = await asyncio.to_thread(
            find_newest, into, run=self.client.link.run, trainers=frozenset([self.publisher])
        )
        if held is not None and (newest is None or held[1] >= newest[1]):
            return held[0]
        if newest is None:
            raise TransportError("the relays have no checkpoint of this publisher")
        return newest[0]

    async def _offers(self) -> list[Offer]:
        async def ask(relay: RelayInfo) -> tuple[Offer, ...]:
            try:
                return (await self.client.link.read_news(relay)).offers
            except (PeerError, TransportError):
                return ()

        answers = await asyncio.gather(*(ask(relay) for relay in self.client.link.known()))
        return [offer for offers in answers for offer in offers]

    def _build(self, folder: Path, step: int) -> CheckpointManifest:
        check_folder(folder)
        total = sum(path.stat().st_size for path in folder.iterdir() if path.is_file())
        return build_manifest(
            folder,
            run=self.client.link.run,
            term=TERM,
            step=step,
            parent=ZERO_DIGEST,
            shard_size=choose_shard_size(total),
        )


async def introduce(http: httpx.AsyncClient, url: str, run: str) -> RelayInfo:
    """The relay that answers at a base URL. Raises TransportError, or Malformed for a relay of another channel."""
    try:
        said = await read_status(http, url, seconds=ASK_SECONDS)
    except TransportError as error:
        raise TransportError(f"no relay answers at {url}: {error}") from error
    if said.run != run:
        raise Malformed(f"the relay at {url} serves another publisher; start it with this publisher's id")
    return RelayInfo(said.node, url.rstrip("/"))


async def _introduce(http: RelayHttp, urls: Sequence[str], run: str) -> tuple[RelayInfo, ...]:
    """The relays that answer at these URLs. Raises TransportError with the last one's error when none does."""
    found = await asyncio.gather(*(introduce(http, url, run) for url in urls), return_exceptions=True)
    relays = tuple(one for one in found if isinstance(one, RelayInfo))
    troubles = [one for one in found if isinstance(one, PeerError | TransportError)]
    if not relays:
        raise troubles[-1] if troubles else TransportError("no relay is named")
    for trouble in troubles:
        log.warning("relay.unreachable", reason=str(trouble))
    return relays
