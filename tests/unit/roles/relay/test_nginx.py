"""nginx in front of a relay, as in `deploy/`: a checkpoint up and down, and a long poll. Skipped without nginx."""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

from dht.identity import NodeKey
from roles.relay import Certificate, Relay, RelaySettings, serve
from roles.shardcast.client import RelayClient
from roles.shardcast.manifest import manifest_digest
from roles.shardcast.relay_http import make_http
from roles.shardcast.replies import RelayInfo
from tests.unit.roles.shardcast.network import QUICK, RUN, TRAINER, WORKER, make_checkpoint, make_envelope

ROOT = Path(__file__).parents[4]
NGINX = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")
pytestmark = pytest.mark.skipif(NGINX is None, reason="no nginx here (Debian: apt-get install nginx-light)")


async def test_nginx__checkpoint_goes_up_and_down_through_it(tmp_path: Path, certificate: Certificate) -> None:
    folder = make_checkpoint(tmp_path / "c", size=3_000_000)
    envelope = make_envelope(folder, shard_size=1_500_000)
    relay = Relay(
        NodeKey(os.urandom(32)),
        root=tmp_path / "relay",
        run=RUN,
        trainers=[TRAINER.node],
        is_member=lambda node: False,
        settings=RelaySettings(bulk=1),
    )
    async with (
        serve(relay.app, host="127.0.0.1", port=0) as inside,
        make_http(ca=certificate.chain) as http,
        nginx(tmp_path / "nginx", inside, certificate, http) as url,
    ):
        origin, reader = (
            RelayClient(
                key,
                run=RUN,
                trainers=[TRAINER.node],
                relays=lambda: [RelayInfo(relay.node, url)],
                http=http,
                limits=QUICK,
            )
            for key in (TRAINER, WORKER)
        )
        await origin.put_checkpoint(envelope, folder)
        fetched = await reader.fetch_checkpoint(manifest_digest(envelope), tmp_path / "into")
    assert (fetched / "model.safetensors").read_bytes() == (folder / "model.safetensors").read_bytes()


@asynccontextmanager
async def nginx(folder: Path, inside: str, certificate: Certificate, http: httpx.AsyncClient) -> AsyncIterator[str]:
    """nginx before the relay at `inside`; gives its URL."""
    assert NGINX is not None
    port = free_port()
    configuration = write_configuration(folder, port=port, inside=inside, certificate=certificate)
    process = await asyncio.create_subprocess_exec(
        NGINX, "-p", str(folder), "-c", str(configuration), stderr=asyncio.subprocess.DEVNULL
    )
    try:
        url = f"https://127.0.0.1:{port}"
        await answers(url, http)
        yield url
    finally:
        process.terminate()
        await process.wait()


def write_configuration(folder: Path, *, port: int, inside: str, certificate: Certificate) -> Path:
    """The shipped site with this test's ports and certificate in place of the example's, in a minimal configuration."""
    folder.mkdir()
    site = (ROOT / "deploy" / "intellect-node-relay.nginx.conf").read_text()
    for said, here in (
        ("listen [::]:443 ssl;", ""),
        ("listen 443 ssl", f"listen 127.0.0.1:{port} ssl"),
        ("/etc/letsencrypt/live/relay.example/fullchain.pem", str(certificate.chain)),
        ("/etc/letsencrypt/live/relay.example/privkey.pem", str(certificate.key)),
        ("127.0.0.1:8080", urlsplit(inside).netloc),
    ):
        assert said in site
        site = site.replace(said, here)
    places = "".join(
        f"{name}_temp_path {folder}/{name};" for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    configuration = folder / "nginx.conf"
    configuration.write_text(
        f"daemon off; master_process off; pid {folder}/pid; error_log stderr;\n"
        f"events {{}}\nhttp {{ access_log off; {places}\n{site}\n}}\n"
    )
    return configuration


async def answers(url: str, http: httpx.AsyncClient) -> None:
    """Wait until nginx listens."""
    async with asyncio.timeout(10):
        while True:
            try:
                await http.get(url)
                return
            except httpx.TransportError:
                await asyncio.sleep(0.02)


def free_port() -> int:
    with closing(socket.socket()) as taken:
        taken.bind(("127.0.0.1", 0))
        port: int = taken.getsockname()[1]
        return port
