"""False deltas: signed by an unauthorised key, listed as something else, or producing other weights than they claim."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
import structlog
from starlette.types import ASGIApp, Receive, Scope, Send

from dht.errors import TransportError
from roles.shardcast.client import RelayClient
from roles.shardcast.manifest import check_delta, manifest_digest, seal_manifest
from tests.unit.roles.shardcast.line import Line, fetches, is_same, make_line, publish, pulling
from tests.unit.roles.shardcast.network import RUN, TRAINER, WORKER, Network, running_network


@dataclass
class Scene:
    """Relays with checkpoints 0 and 1, and a client that holds 0."""

    network: Network
    line: Line
    client: RelayClient
    into: Path


@asynccontextmanager
async def scene(
    root: Path, wrap: Callable[[ASGIApp], ASGIApp] = lambda app: app, *, both: bool = False
) -> AsyncIterator[Scene]:
    """`wrap` makes the first relay, or both, misbehave."""
    line = make_line(root / "line", steps=3)
    async with running_network(root, relays=0) as network:
        await network.add_relay(wrap)
        await network.add_relay(wrap if both else lambda app: app)
        async with pulling(network):
            await publish(network, line, [0])
            client, into = network.client(), root / "into"
            await client.fetch_checkpoint(line.digest(0), into)
            yield Scene(network, line, client, into)


async def test_delta__of_a_stranger_is_refused_and_nothing_is_kept(tmp_path: Path) -> None:
    async with scene(tmp_path) as at:
        row = check_delta(at.line.delta(1)[0], run=RUN, trainers={TRAINER.node})
        link = at.network.client().link
        for info, relay in zip(at.network.infos, at.network.relays, strict=True):
            with pytest.raises(TransportError, match="not_allowed"):
                await link.send_manifest(info, seal_manifest(WORKER, row))
            assert relay.shelf.catalogue.deltas() == []
            assert len(relay.shelf.catalogue) == 1


async def test_delta__that_makes_other_weights_is_refused_and_said(tmp_path: Path) -> None:
    """The signed row says 0 -> 1, but its bytes lead to 2: valid in themselves, and useless to everybody."""
    async with scene(tmp_path) as at:
        _, folder = at.line.delta(2, base=0)
        other = (folder / "delta").read_bytes()
        with structlog.testing.capture_logs() as log:
            bad = at.line.delta(1, file=other)
            await at.network.client(TRAINER).put_checkpoint(at.line.rows[1], at.line.folders[1], delta=bad, whole=False)
            fetched = await at.client.fetch_checkpoint(at.line.digest(1), at.into)
        assert is_same(fetched, at.line.folders[1])
        assert is_same(at.into / at.line.digest(0), at.line.folders[0])
        assert {entry["delta"] for entry in log if entry["event"] == "delta.refused"} == {manifest_digest(bad[0])}
        for relay in at.network.relays:
            assert [kept.digest for kept in relay.shelf.catalogue] == [at.line.digest(1), at.line.digest(0)]
            assert not any(relay.shelf.missing(kept) for kept in relay.shelf.catalogue)


def listing(app: ASGIApp, change: Callable[[dict[str, object]], dict[str, object]]) -> ASGIApp:
    """The same relay, but it lists every delta as `change` makes it."""

    async def lying(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] != "/deltas":
            await app(scope, receive, send)
            return
        said: list[bytes] = []

        async def keep(message: object) -> None:
            assert isinstance(message, dict)
            said.append(message.get("body", b""))

        await app(scope, receive, keep)
        body = json.dumps({"deltas": [change(one) for one in json.loads(b"".join(said))["deltas"]]}).encode()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": body})

    return lying


async def test_delta__listed_as_what_it_is_not_costs_the_relay_its_place(tmp_path: Path) -> None:
    """It claims that 0 -> 1 leads to 2. A client that believed this would fetch it in vain, again and again."""
    line = make_line(tmp_path / "same", steps=3)
    false = {"target": line.digest(2)}
    async with scene(tmp_path, lambda app: listing(app, lambda one: {**one, **false})) as at:
        await publish(at.network, at.line, [0, 1])
        await at.network.client(TRAINER).put_checkpoint(at.line.rows[2], at.line.folders[2])
        with structlog.testing.capture_logs() as log:
            fetched = await at.client.fetch_checkpoint(at.line.digest(2), at.into)
        assert is_same(fetched, at.line.folders[2])
        assert fetches(log) == [(True, False)]
        assert [entry["reason"] for entry in log if entry["event"] == "relay.dropped"] == [
            "it lists a delta as what it is not"
        ]


async def test_delta__that_nobody_has_hides_no_other(tmp_path: Path) -> None:
    """A relay lists a delta of a single byte, which everybody would fetch first."""
    made_up = {"delta": "ab" * 32, "size": 1}
    async with scene(tmp_path, lambda app: listing(app, lambda one: {**one, **made_up})) as at:
        await publish(at.network, at.line, [0, 1])
        with structlog.testing.capture_logs() as log:
            fetched = await at.client.fetch_checkpoint(at.line.digest(1), at.into)
        assert is_same(fetched, at.line.folders[1])
        assert fetches(log)[0][0] is False


@pytest.mark.parametrize("change", [{"size": True}, {"base": "../.."}])
async def test_delta__listed_in_no_form_is_passed_over(tmp_path: Path, change: dict[str, object]) -> None:
    async with scene(tmp_path, lambda app: listing(app, lambda one: {**one, **change}), both=True) as at:
        await publish(at.network, at.line, [0, 1])
        with structlog.testing.capture_logs() as log:
            await at.client.fetch_checkpoint(at.line.digest(1), at.into)
        assert fetches(log) == [(True, False)]
