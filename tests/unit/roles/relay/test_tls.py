"""HTTPS: shards up and down; a certificate from an untrusted issuer is refused; bad files are named."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dht.errors import TransportError
from dht.identity import NodeKey
from roles.relay import BadCertificate, Certificate, Relay, RelaySettings, serve
from roles.shardcast.client import RelayClient
from roles.shardcast.manifest import manifest_digest
from roles.shardcast.relay_http import make_http
from roles.shardcast.replies import RelayInfo
from tests.unit.roles.shardcast.network import QUICK, RUN, TRAINER, WORKER, make_checkpoint, make_envelope


async def test_serve__checkpoint_goes_up_and_down_over_tls(tmp_path: Path, certificate: Certificate) -> None:
    folder = make_checkpoint(tmp_path / "c", size=1_000_000)
    envelope = make_envelope(folder, shard_size=300_000)
    relay = Relay(
        NodeKey(os.urandom(32)),
        root=tmp_path / "relay",
        run=RUN,
        trainers=[TRAINER.node],
        is_member=lambda node: False,
        settings=RelaySettings(bulk=1),
    )
    async with (
        serve(relay.app, host="127.0.0.1", port=0, certificate=certificate) as url,
        make_http(ca=certificate.chain) as trusting,
        make_http() as strange,
    ):
        assert url.startswith("https://")
        origin, reader, stranger = (
            RelayClient(
                key,
                run=RUN,
                trainers=[TRAINER.node],
                relays=lambda: [RelayInfo(relay.node, url)],
                http=http,
                limits=QUICK,
            )
            for key, http in ((TRAINER, trusting), (WORKER, trusting), (WORKER, strange))
        )
        await origin.put_checkpoint(envelope, folder)
        with pytest.raises(TransportError):
            await stranger.fetch_checkpoint(manifest_digest(envelope), tmp_path / "nothing")
        fetched = await reader.fetch_checkpoint(manifest_digest(envelope), tmp_path / "into")
    assert (fetched / "model.safetensors").read_bytes() == (folder / "model.safetensors").read_bytes()


def test_certificate__missing_file_and_foreign_key_are_named(tmp_path: Path, certificate: Certificate) -> None:
    with pytest.raises(BadCertificate, match=r"nowhere\.pem"):
        Certificate(tmp_path / "nowhere.pem").check()
    with pytest.raises(BadCertificate, match=r"chain\.pem"):
        Certificate(certificate.chain).check()  # no key in it
    with pytest.raises(BadCertificate, match="no certificates"):
        make_http(ca=tmp_path / "nowhere.pem")
