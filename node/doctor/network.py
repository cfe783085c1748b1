"""The connection to the run: each seed separately, the clock compared with theirs, and each relay over HTTP (UX-10)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

import httpx

from dht.directory import HivemindDirectory
from dht.errors import TransportError
from dht.peers import PeerInfo, parse_peers
from node.doctor.finding import Finding, fault, ok, skipped, warning
from roles.shardcast.reading import read_status
from roles.shardcast.replies import RelayInfo

SEEDS_SECONDS = 12.0
"""Timeout for all seeds together; a silent one costs a dial of 5 s."""
LOOK_SECONDS = 0.2
SKEW_SECONDS = 1.0
LARGEST_SKEW = 3.0
"""Clock skew in seconds beyond which hivemind's peers refuse a node."""
RELAY_SECONDS = 5.0
CAUSES = {
    "connection refused": "nothing listens there (connection refused)",
    "no route to host": "there is no way to that address (no route to host)",
    "network is unreachable": "there is no way to that network",
    "peer id mismatch": "another node answers there: the address is an old one",
    "no such host": "its name is not known",
    "no good addresses": "its name is not known, or no address of that kind can be dialled from here",
    "failed to negotiate": "what answers there is no node of this run: another program, or an old join string",
    "timeout": "no answer: a firewall, or a machine that is down",
    "deadline exceeded": "no answer: a firewall, or a machine that is down",
    "all dials failed": "no answer there",
}
CLOCK_FIX = "switch time synchronisation on: timedatectl set-ntp true"
SEED_FIX = (
    "is the address right and the firewall open (TCP out)? Any one seed is enough; ask the operator for another: --peer"
)


async def examine_seeds(
    directory: HivemindDirectory, peers: Sequence[str], *, ours: str | None = None
) -> list[Finding]:
    """Wait until every seed has answered or failed, and report each. One answer is enough. `ours` is this node's id."""
    seeds = {address.node: str(address) for address in parse_peers(peers)}
    if ours in seeds and len(seeds) == 1:
        return [ok("seed", "this node is the run's only one: the others find the run through it")]
    deadline = time.monotonic() + SEEDS_SECONDS
    while True:
        known = {info.node: info for info in directory.peers()}
        found = {node: known.get(node, PeerInfo(node)) for node in seeds if node != ours}
        if all(_is_settled(info) for info in found.values()) or time.monotonic() > deadline:
            break
        await asyncio.sleep(LOOK_SECONDS)
    has_answer = any(info.round_trip is not None for info in found.values())
    return [judge_seed(seeds[node], info, is_vital=not has_answer) for node, info in found.items()]


def _is_settled(info: PeerInfo) -> bool:
    return info.round_trip is not None or info.failures > 0


def judge_seed(address: str, info: PeerInfo, *, is_vital: bool) -> Finding:
    """Judge one seed. `is_vital`: no other one answered."""
    if info.round_trip is not None:
        clock = "" if info.skew is None else f", clock {info.skew:+.1f} s"
        return ok("seed", f"{address} answers in {info.round_trip * 1000:.0f} ms{clock}")
    make = fault if is_vital else warning
    return make("seed", f"{address}: {plain_cause(info.last_error)}", SEED_FIX)


def plain_cause(error: str) -> str:
    """p2pd's message about a failed dial in plain words."""
    for words, said in CAUSES.items():
        if words in error.lower():
            return said
    return error.partition("\n")[0][:120] or f"no answer in {SEEDS_SECONDS:g} s"


def judge_clock(skew: float | None) -> Finding | None:
    """Our clock compared with the median of the peers' (BOOT-16, BOOT-17); None when no peer answered."""
    if skew is None:
        return None
    said = f"peers' clocks are {skew:+.1f} s from ours"
    if abs(skew) > LARGEST_SKEW:
        return fault("clock", said, CLOCK_FIX)
    return warning("clock", said, CLOCK_FIX) if abs(skew) > SKEW_SECONDS else ok("clock", said)


async def examine_relays(
    http: httpx.AsyncClient, relays: Sequence[RelayInfo], *, is_first: bool = False
) -> list[Finding]:
    """Check each relay over HTTP. `is_first`: none need exist before this node."""
    if not relays and is_first:
        return [skipped("relay", "none is up yet; this node may be the first")]
    if not relays:
        return [
            fault("relay", "no relay of the run is known", "is the run up? Name one: --relay http://HOST:PORT"),
        ]
    found = await asyncio.gather(*(_ask_relay(http, relay) for relay in relays))
    has_answer = any(cause is None for _, cause, _ in found)
    return [_judge_relay(relay, cause, seconds, is_vital=not has_answer) for relay, cause, seconds in found]


async def _ask_relay(http: httpx.AsyncClient, relay: RelayInfo) -> tuple[RelayInfo, str | None, float]:
    begun = time.monotonic()
    try:
        await read_status(http, relay.url, seconds=RELAY_SECONDS)
    except TransportError as error:
        return relay, str(error), time.monotonic() - begun
    return relay, None, time.monotonic() - begun


def _judge_relay(relay: RelayInfo, cause: str | None, seconds: float, *, is_vital: bool) -> Finding:
    if cause is None:
        return ok("relay", f"{relay.url} answers in {seconds * 1000:.0f} ms")
    make = fault if is_vital else warning
    return make("relay", f"{relay.url}: {cause[:120]}", "one relay is enough; is HTTP out open in your firewall?")
