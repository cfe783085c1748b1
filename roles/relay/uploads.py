"""HTTP routes for uploads: blobs and manifests under grants, which are checked before a body is read."""

from __future__ import annotations

import asyncio
from collections import Counter
from functools import partial

import structlog
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from dht.envelope import Envelope, from_bytes
from dht.identity import NodeId
from roles.messages import UploadGrant
from roles.relay.bodies import address_of, body_blocks, declared_length, digest_in_path, pour_body, read_body
from roles.relay.fence import FencedLeader
from roles.relay.parts import RelayParts
from roles.relay.refusal import Refusal
from roles.shardcast.blobs import BlobWriter
from roles.shardcast.catalogue import KeptCheckpoint, Parcel
from roles.shardcast.grants import open_grant
from roles.shardcast.manifest import MAX_MANIFEST_BYTES
from roles.shardcast.sinks import pour

log = structlog.get_logger("relay")

MANIFESTS_AT_ONCE = 4


class Uploads:
    """The two PUT routes."""

    def __init__(self, parts: RelayParts) -> None:
        self._parts = parts
        self._settings, self._shelf, self._counters = parts.settings, parts.shelf, parts.counters
        self._manifests = asyncio.Semaphore(MANIFESTS_AT_ONCE)
        self._uploading: Counter[NodeId] = Counter()

    async def put_blob(self, request: Request) -> Response:
        """Store a blob under a grant. It is hashed and counted while it streams to disk."""
        digest, size = digest_in_path(request), declared_length(request)
        row, grant = self._open_grant(request, digest, size)
        listed = self._shelf.catalogue.shard_size(digest)
        is_shard = row.signer in self._parts.members.trainers and listed is not None
        if is_shard and listed != size:
            raise Refusal(400, "wrong_length", f"the manifest says that this shard has {listed} bytes")
        if not is_shard:
            self._check_member(row.signer, size)
        if digest in self._shelf.store:
            return JSONResponse({"stored": digest})
        if not is_shard:
            self._parts.quota_of(row.signer).charge(row.signer, size)
        self._parts.grants.use(row, grant)
        self._parts.rate.give_back(address_of(request))
        await (self._receive_shard if is_shard else partial(self._receive_blob, row.signer))(request, digest, size)
        self._counters.uploads += 1
        return JSONResponse({"stored": digest}, 201)

    def _open_grant(self, request: Request, digest: str, size: int) -> tuple[Envelope, UploadGrant]:
        header = request.headers.get("x-grant")
        if header is None:
            raise Refusal(401, "grant_missing", "an upload needs a grant in the X-Grant header")
        row, grant = open_grant(header, run=self._parts.run)
        self._parts.grants.check(row, grant, blob=digest, size=size)
        return row, grant

    def _check_member(self, node: NodeId, size: int) -> None:
        self._parts.members.check(node)
        if size > self._settings.max_blob:
            raise Refusal(413, "too_large", f"a blob has at most {self._settings.max_blob} bytes here")
        if self._uploading.total() >= self._settings.uploads_at_once:
            raise Refusal(503, "busy", "too many uploads at once; try another relay")
        if self._uploading[node] >= self._settings.uploads_of_one:
            raise Refusal(429, "too_many_uploads", "this node has too many uploads under way")

    async def _receive_shard(self, request: Request, digest: str, size: int) -> None:
        self._parts.noticed()
        await self._receive(request, self._shelf.begin(digest, size, is_shard=True), size, is_shard=True)
        self._parts.noticed()

    async def _receive_blob(self, node: NodeId, request: Request, digest: str, size: int) -> None:
        writer: BlobWriter | None = None
        self._uploading[node] += 1
        try:
            writer = self._shelf.begin(digest, size, is_shard=False)
            await self._receive(request, writer, size, is_shard=False)
        finally:
            self._uploading[node] -= 1
            if not self._uploading[node]:
                del self._uploading[node]
            self._parts.quota_of(node).refund(node, size - min(size, writer.received if writer else 0))

    async def _receive(self, request: Request, writer: BlobWriter, size: int, *, is_shard: bool) -> None:
        try:
            async with writer:
                idle, total = self._settings.idle, self._settings.total(size)
                if is_shard and size >= self._settings.bulk:  # slow members must not occupy the few threads
                    await pour_body(request, writer, size, idle=idle, total=total)
                else:
                    await pour(body_blocks(request, idle=idle, total=total), writer)
        finally:
            self._counters.bytes_received += writer.received

    async def put_manifest(self, request: Request) -> Response:
        """Take a manifest, or a delta's row, signed by a trainer. Its shards may be pushed afterwards, or are pulled.

        The trainer's grant is checked before any of the body is read, so that strangers cannot
        occupy the few places here.
        """
        digest, size = digest_in_path(request), declared_length(request)
        row, grant = self._open_grant(request, digest, size)
        if row.signer not in self._parts.members.trainers:
            raise Refusal(403, "not_allowed", "only a trainer of the run uploads manifests")
        self._parts.grants.use(row, grant)
        async with self._manifests:
            data = await read_body(
                request,
                limit=MAX_MANIFEST_BYTES,
                idle=self._settings.idle,
                total=self._settings.total(MAX_MANIFEST_BYTES),
            )
            kept = await asyncio.to_thread(self._judge, data)
            if kept.digest != digest:
                raise Refusal(400, "wrong_digest", "the manifest has another digest than the path says")
            is_new = kept.digest not in self._shelf.catalogue
            await self._shelf.add(kept)
        self._parts.noticed()
        if is_new and isinstance(kept, KeptCheckpoint):  # a trainer resends it to find relays that lost it
            log.info("manifest.accepted", step=kept.manifest.step, manifest=digest)
        return JSONResponse({"stored": digest}, 201)

    def _judge(self, data: bytes) -> Parcel:
        kept = self._shelf.catalogue.check(from_bytes(data, limit=MAX_MANIFEST_BYTES))
        try:
            return self._parts.fence.check_parcel(kept)
        except FencedLeader as error:
            raise Refusal(403, "old_term", str(error)) from error
