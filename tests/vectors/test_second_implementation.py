"""docs/protocol.md implemented again with the standard library alone, and checked against the
same vectors as the product.

`python tests/vectors/test_second_implementation.py` writes `derivations.json` from the product; do that only together
with a new version of what changed. `Reading` uses nothing of the product: anything it needs and cannot find in the
document is a fault of the document.
"""

from __future__ import annotations

import hashlib
import json
import math
import struct
import sys
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import pytest
import torch

from dht.bare import PeerID
from dht.encoding import digest, pack
from dht.identity import NodeKey, public_key_of, verify
from dht.places import place_of_peer
from dht.record_validator import key_hash
from ledger.merkle import merkle_root
from ledger.records import Leaf
from ledger.wallet import Domain, registration_message
from roles.assignment import assigned_groups, compute_beacon, compute_seed, is_admitted
from roles.assignment import draw as draw_number
from roles.inference.noise import Stream, gumbel_noise
from roles.inference.sampling import SamplingSettings, draw, token_margins
from roles.messages import bucket_of
from roles.seals import seal_of
from roles.shardcast.manifest import compute_weights_digest
from roles.shardcast.work import compute_work
from tests.vectors.test_messages import MESSAGES

HERE = Path(__file__).parent
FILE = HERE / "derivations.json"
RUN = "ab" * 32
KEY = NodeKey(b"intellect-node test vector key 1")
CONTRACT = "0x5fbdb2315678afecb367f032d93f642f64180aa3"
WALLET, CLAIMED = "0x" + "11" * 20, "0x" + "22" * 20
UNEVEN = 3 * 2**62
"""A bound of which a quarter of all values lies in the uneven tail: some draws take a second try."""
SEEDS, POSITIONS, TOKENS = (0, 1, 2**63 - 1), (0, 1, 1000), 9
STREAMS = {"tokens": Stream.TOKENS, "groups": Stream.GROUPS}
LOGITS = [((token * 7919) % 613) / 64 for token in range(600)]
"""Three groups, the last a short one."""
SETTINGS = ((1.0, 0, 1.0), (0.7, 0, 1.0), (1.0, 40, 1.0), (1.3, 50, 0.9), (0.0, 0, 1.0))
ALPHABET = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"


class Reading:
    """The document, section by section."""

    # Parts and digests

    @staticmethod
    def pack(*parts: bytes | str | int) -> bytes:
        out = b""
        for part in parts:
            data = (
                part.to_bytes(8, "big") if isinstance(part, int) else part.encode() if isinstance(part, str) else part
            )
            out += struct.pack(">I", len(data)) + data
        return out

    @classmethod
    def digest(cls, *parts: bytes | str | int) -> str:
        return hashlib.sha256(cls.pack(*parts)).hexdigest()

    @staticmethod
    def unpack(data: bytes) -> list[bytes]:
        parts = []
        while data:
            (size,) = struct.unpack(">I", data[:4])
            parts.append(data[4 : 4 + size])
            data = data[4 + size :]
        return parts

    # Nodes

    @staticmethod
    def node_id(public_key: bytes) -> str:
        raw = bytes.fromhex("002408011220") + public_key
        number, text = int.from_bytes(raw, "big"), ""
        while number:
            number, rest = divmod(number, 58)
            text = ALPHABET[rest] + text
        return "1" * (len(raw) - len(raw.lstrip(b"\0"))) + text

    @staticmethod
    def public_key(node: str) -> bytes:
        number = 0
        for letter in node.lstrip("1"):
            number = number * 58 + ALPHABET.index(letter)
        return number.to_bytes(37, "big")[-32:]

    # Messages and envelopes

    @staticmethod
    def canonical(plain: object) -> str:
        return json.dumps(plain, sort_keys=True, separators=(",", ":"), ensure_ascii=True)

    @classmethod
    def signed_bytes(cls, fields: list[bytes]) -> bytes:
        return cls.pack("intellect-node/envelope/1", *fields[:-1])

    @classmethod
    def bucket(cls, node: str, buckets: int) -> int:
        return int(cls.digest("bucket/1", node)[:16], 16) % buckets

    # The DHT

    @staticmethod
    def key_place(key: str) -> str:
        text = key.encode()
        head = bytes([0xD9, len(text)]) if len(text) > 31 else bytes([0xA0 | len(text)])  # msgpack str
        return hashlib.sha1(head + text, usedforsecurity=False).hexdigest()

    @classmethod
    def node_place(cls, node: str) -> str:
        peer = bytes.fromhex("002408011220") + cls.public_key(node)
        return hashlib.sha1(b"place/1" + peer, usedforsecurity=False).hexdigest()

    # Assignment

    @classmethod
    def draw(cls, seed: str, label: str, number: int, below: int) -> int:
        retry = 0
        while True:
            parts = ("draw/1", seed, label, number, *((retry,) if retry else ()))
            value = int.from_bytes(hashlib.sha256(cls.pack(*parts)).digest()[:8], "big")
            if value < 2**64 - 2**64 % below:
                return value % below
            retry += 1

    @classmethod
    def groups(cls, seed: str, problems: int, groups: int, size: int) -> list[list[Any]]:
        return [
            [
                cls.draw(seed, "prompt", group, problems),
                [cls.draw(seed, "sample", group * size + k, 2**63) for k in range(size)],
            ]
            for group in range(groups)
        ]

    # Sampling

    @staticmethod
    def philox(counter: list[int], key: list[int]) -> list[int]:
        (a, b, c, d), (k, m) = counter, key
        for _ in range(10):
            left, right = a * 0xD2511F53, c * 0xCD9E8D57
            a, b, c, d = (right >> 32) ^ b ^ k, right & 0xFFFFFFFF, (left >> 32) ^ d ^ m, left & 0xFFFFFFFF
            k, m = (k + 0x9E3779B9) & 0xFFFFFFFF, (m + 0xBB67AE85) & 0xFFFFFFFF
        return [a, b, c, d]

    @classmethod
    def noise(cls, stream: str, seed: int, position: int, item: int) -> float:
        counter = [item // 4, position, ["tokens", "groups"].index(stream), 0]
        word = cls.philox(counter, [seed % 2**32, seed // 2**32])[item % 4]
        exact = -math.log(-math.log((word + 0.5) / 2**32))
        return float(struct.unpack("<f", struct.pack("<f", exact))[0])

    @staticmethod
    def support(scaled: list[float], top_k: int, top_p: float) -> list[int]:
        ranked = sorted(range(len(scaled)), key=lambda token: (-scaled[token], token))[: top_k or None]
        wanted, mass, kept = top_p * sum(math.exp(scaled[token]) for token in ranked), 0.0, 0
        while kept < len(ranked) and (kept == 0 or mass < wanted):
            mass += math.exp(scaled[ranked[kept]])
            kept += 1
        return ranked[:kept]

    @classmethod
    def scores(
        cls, scaled: dict[int, float], seed: int, position: int
    ) -> tuple[dict[int, float], dict[int, dict[int, float]]]:
        """Of each group, and in each group of each token."""
        members: dict[int, dict[int, float]] = {}
        for token, value in scaled.items():
            members.setdefault(token // 256, {})[token] = value
        groups = {
            number: math.log(sum(map(math.exp, values.values()))) + cls.noise("groups", seed, position, number)
            for number, values in members.items()
        }
        tokens = {
            number: {token: value + cls.noise("tokens", seed, position, token) for token, value in values.items()}
            for number, values in members.items()
        }
        return groups, tokens

    @classmethod
    def choice(cls, given: dict[str, Any], logits: list[float]) -> int:
        if given["temperature"] == 0:
            return logits.index(max(logits))
        scaled = [logit / given["temperature"] for logit in logits]
        allowed = {token: scaled[token] for token in cls.support(scaled, given["top_k"], given["top_p"])}
        groups, tokens = cls.scores(allowed, given["seed"], given["position"])
        inner = tokens[max(groups, key=lambda number: groups[number])]
        return max(inner, key=lambda token: inner[token])

    @classmethod
    def margin(cls, given: dict[str, Any], logits: list[float], token: int) -> float:
        if given["temperature"] == 0:
            return float(max(logits) - logits[token])
        scaled = [logit / given["temperature"] for logit in logits]
        allowed = cls.support(scaled, given["top_k"], given["top_p"])
        sure, possible = (cls.moved(given, scaled, factor) for factor in (math.exp(0.5), math.exp(-0.5)))
        left_out = max((scaled[each] for each in range(len(scaled)) if each not in allowed), default=-math.inf)
        sure = [each for each in sure if scaled[each] >= left_out + 0.5]
        least = min(scaled[each] for each in allowed) - 0.5
        possible = [each for each in range(len(scaled)) if each in possible or scaled[each] >= least]
        own, _ = cls.scores({each: scaled[each] for each in (*possible, token)}, given["seed"], given["position"])
        groups, tokens = cls.scores({each: scaled[each] for each in (*sure, token)}, given["seed"], given["position"])
        inner = tokens[token // 256]
        outside: float = max(0.0, min(scaled[each] for each in possible) - scaled[token])
        missing: float = max(0.0, max(groups.values()) - own[token // 256])
        return outside + missing + max(inner.values()) - inner[token]

    @classmethod
    def moved(cls, given: dict[str, Any], scaled: list[float], factor: float) -> list[int]:
        """The support with the odds of the nucleus's mass divided."""
        mass = given["top_p"]
        return cls.support(scaled, given["top_k"], mass if mass == 1 else mass / (mass + (1 - mass) * factor))

    # Manifests

    @staticmethod
    def weights(shards: list[str]) -> str:
        return hashlib.sha256(b"".join(bytes.fromhex(shard) for shard in shards)).hexdigest()

    # Ledger

    @classmethod
    def root(cls, leaves: list[dict[str, Any]]) -> str:
        roles = ("worker", "validator", "relay", "trainer")
        ordered = sorted(leaves, key=lambda leaf: (roles.index(leaf["role"]), leaf["node"], leaf["wallet"] or ""))
        level = [
            hashlib.sha256(
                b"tally-leaf/2"
                + bytes([roles.index(leaf["role"])])
                + cls.public_key(leaf["node"])
                + bytes.fromhex((leaf["wallet"] or "0x" + "00" * 20)[2:])
                + leaf["units"].to_bytes(16, "big")
                + leaf["amount"].to_bytes(16, "big")
            ).digest()
            for leaf in ordered
        ]
        count = len(level)
        while len(level) > 1:
            pairs = [level[i : i + 2] for i in range(0, len(level), 2)]
            level = [
                hashlib.sha256(b"tally-node/1" + pair[0] + pair[1]).digest() if len(pair) == 2 else pair[0]
                for pair in pairs
            ]
        top = level[0] if level else b""
        return hashlib.sha256(b"tally-root/1" + count.to_bytes(8, "big") + top).hexdigest()

    @classmethod
    def registration(cls, given: dict[str, Any]) -> str:
        def address(text: str | None) -> bytes:
            return bytes.fromhex((text or "0x" + "00" * 20)[2:])

        return cls.pack(
            "registration/1",
            given["chain_id"].to_bytes(32, "big"),
            address(given["contract"]),
            bytes.fromhex(given["run"]),
            cls.public_key(given["node"]),
            address(given["wallet"]),
            address(given["claimed"]),
            given["nonce"].to_bytes(32, "big"),
        ).hex()

    @classmethod
    def is_work(cls, node: str, nonce: int, counter: int) -> bool:
        return cls.digest("sponsor-work/1", node, nonce, counter).startswith("0000")


def leaves_of(count: int) -> list[dict[str, Any]]:
    """So many leaves of different roles, wallets and numbers."""
    roles = ("trainer", "relay", "validator", "worker")
    return [
        {
            "node": NodeKey(bytes([number + 1]) * 32).node,
            "wallet": None if number % 3 == 0 else "0x" + bytes([number]).hex() * 20,
            "units": number * 10**6,
            "amount": number * 10**18,
            "role": roles[number % 4],
        }
        for number in range(count)
    ]


def registration_of(*, wallet: str | None, claimed: str | None, nonce: int) -> dict[str, Any]:
    """A registration and what its node signs."""
    signed = registration_message(
        Domain(31337, CONTRACT), run=RUN, node=KEY.node, wallet=wallet, claimed=claimed, nonce=nonce
    )
    given = {"chain_id": 31337, "contract": CONTRACT, "run": RUN, "node": KEY.node}
    return given | {"wallet": wallet, "claimed": claimed, "nonce": nonce, "signed": signed.hex()}


def choice_of(seed: int, *, temperature: float, top_k: int, top_p: float) -> dict[str, Any]:
    """The token that sampling gives of `LOGITS`, and the margins of some others."""
    settings = SamplingSettings(temperature=temperature, top_p=top_p, top_k=top_k, max_tokens=1)
    rows = torch.tensor([LOGITS]).expand(8, -1)
    others, seeds, positions = torch.arange(8) * 75, torch.full((8,), seed), torch.full((8,), 3)
    return {
        "temperature": temperature,
        "top_k": top_k,
        "top_p": top_p,
        "seed": seed,
        "position": 3,
        "token": int(draw(rows[:1], seeds[:1], positions[:1], settings).tokens),
        "margins": dict(
            zip(
                map(str, others.tolist()), token_margins(rows, others, seeds, positions, settings).tolist(), strict=True
            )
        ),
    }


def build_vectors() -> dict[str, Any]:
    """Everything by the product."""
    beacon = compute_beacon("cd" * 32, "ef" * 32)
    seed = compute_seed(run=RUN, node=KEY.node, step=7, index=3, beacon=beacon)
    shards = [hashlib.sha256(bytes([number])).hexdigest() for number in range(3)]
    return {
        "pack": {"parts": ["a", 7, "", "é"], "bytes": pack("a", 7, "", "é").hex(), "digest": digest("a", 7, "", "é")},
        "node": {"public_key": public_key_of(KEY.node).hex(), "node": KEY.node},
        "places": {
            "key": f"{RUN}/head",
            "key_place": key_hash(f"{RUN}/head").hex(),
            "node_place": place_of_peer(PeerID.from_base58(KEY.node)).to_bytes().hex(),
            "bucket_of_16": bucket_of(KEY.node, 16),
        },
        "assignment": {
            "manifest": "cd" * 32,
            "block": "ef" * 32,
            "beacon": beacon,
            "step": 7,
            "index": 3,
            "seed": seed,
            "draws": [draw_number(seed, "uneven", number, UNEVEN) for number in range(16)],
            "is_admitted_by_half": is_admitted(seed, 2**63),
            "groups": [
                [g.problem, list(g.seeds)] for g in assigned_groups(seed, problems=2048, groups=2, group_size=4)
            ],
        },
        "noise": [
            {
                "stream": name,
                "seed": seed,
                "position": position,
                "values": gumbel_noise(torch.tensor([seed]), torch.tensor([position]), TOKENS, stream=stream)[
                    0
                ].tolist(),
            }
            for name, stream in STREAMS.items()
            for seed in SEEDS
            for position in POSITIONS
        ],
        "sampling": [
            choice_of(seed, temperature=temperature, top_k=top_k, top_p=top_p)
            for temperature, top_k, top_p in SETTINGS
            for seed in range(6)
        ],
        "manifest": {"shards": shards, "weights": compute_weights_digest(shards)},
        "seal": {"validator": KEY.node, "seal": seal_of(MESSAGES["verdict/2"], KEY.node)},  # type: ignore[arg-type]
        "roots": [
            {"leaves": leaves, "root": merkle_root([Leaf(**leaf) for leaf in leaves])}
            for leaves in map(leaves_of, (0, 1, 2, 5, 8))
        ],
        "registrations": [
            registration_of(wallet=WALLET, claimed=None, nonce=1),
            registration_of(wallet=None, claimed=CLAIMED, nonce=2**40),
            registration_of(wallet=None, claimed=None, nonce=3),
        ],
        "work": {"node": KEY.node, "nonce": 5, "counter": compute_work(KEY.node, 5)},
    }


@pytest.fixture(scope="module")
def vectors() -> dict[str, Any]:
    """The file."""
    plain: dict[str, Any] = json.loads(FILE.read_text())
    return plain


def test_product__gives_the_vectors(vectors: dict[str, Any]) -> None:
    assert json.loads(json.dumps(build_vectors())) == vectors


def test_document__parts_ids_and_places(vectors: dict[str, Any]) -> None:
    given = vectors["pack"]
    assert Reading.pack(*given["parts"]).hex() == given["bytes"]
    assert Reading.digest(*given["parts"]) == given["digest"]
    node, key = vectors["node"]["node"], vectors["node"]["public_key"]
    assert (Reading.node_id(bytes.fromhex(key)), Reading.public_key(node).hex()) == (node, key)
    places = vectors["places"]
    assert Reading.key_place(places["key"]) == places["key_place"]
    assert Reading.node_place(node) == places["node_place"]
    assert Reading.bucket(node, 16) == places["bucket_of_16"]


def test_document__assignment(vectors: dict[str, Any]) -> None:
    given, node = vectors["assignment"], vectors["node"]["node"]
    assert Reading.digest("beacon/1", given["manifest"], given["block"]) == given["beacon"]
    seed = Reading.digest("assignment/1", RUN, node, given["step"], given["index"], given["beacon"])
    assert seed == given["seed"]
    assert [Reading.draw(seed, "uneven", number, UNEVEN) for number in range(16)] == given["draws"]
    assert (Reading.draw(seed, "admit", 0, 2**64) < 2**63) is given["is_admitted_by_half"]
    assert Reading.groups(seed, 2048, 2, 4) == given["groups"]


def test_document__noise(vectors: dict[str, Any]) -> None:
    assert Reading.philox([0, 0, 0, 0], [0, 0]) == [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]  # Random123's own
    for given in vectors["noise"]:
        read = [Reading.noise(given["stream"], given["seed"], given["position"], item) for item in range(TOKENS)]
        assert read == pytest.approx(
            given["values"], rel=1e-6, abs=1e-7
        )  # libraries' logarithms differ in the last bit


def test_document__sampling(vectors: dict[str, Any]) -> None:
    for given in vectors["sampling"]:
        assert Reading.choice(given, LOGITS) == given["token"]
        for token, margin in given["margins"].items():
            assert Reading.margin(given, LOGITS, int(token)) == pytest.approx(margin, rel=1e-5, abs=1e-5)


def test_document__manifest_ledger_and_work(vectors: dict[str, Any]) -> None:
    assert Reading.weights(vectors["manifest"]["shards"]) == vectors["manifest"]["weights"]
    assert [Reading.root(given["leaves"]) for given in vectors["roots"]] == [
        given["root"] for given in vectors["roots"]
    ]
    assert [Reading.registration(given) for given in vectors["registrations"]] == [
        given["signed"] for given in vectors["registrations"]
    ]
    work = vectors["work"]
    assert Reading.is_work(work["node"], work["nonce"], work["counter"])
    assert not any(Reading.is_work(work["node"], work["nonce"], each) for each in range(min(work["counter"], 64)))


@pytest.mark.parametrize("kind", sorted(MESSAGES))
def test_document__messages_and_envelopes(kind: str) -> None:
    given = json.loads((HERE / "messages.json").read_text())[kind]
    plain = json.loads(given["payload"])
    assert Reading.canonical(plain) == given["payload"]
    assert plain["kind"] == kind
    assert Reading.digest("body/1", RUN, kind, given["payload"]) == given["digest"]
    fields = Reading.unpack(bytes.fromhex(given["envelope"]))
    assert [fields[0].decode(), fields[1].decode(), fields[2].decode(), fields[3].decode()] == [
        *(RUN, kind, given["key"], given["subkey"]),
    ]
    assert fields[7].decode() == given["payload"]
    signer = fields[3].decode().partition(":")[0]
    assert verify(signer, Reading.signed_bytes(fields), fields[8])


def test_document__seal(vectors: dict[str, Any]) -> None:
    verdict = json.loads(json.loads((HERE / "messages.json").read_text())["verdict/2"]["payload"])
    seal = Reading.digest(
        "seal/1",
        vectors["seal"]["validator"],
        *(verdict["submission"], verdict["outcome"], verdict["reason"], verdict["salt"]),
    )
    assert seal == vectors["seal"]["seal"]


if __name__ == "__main__":
    FILE.write_text(json.dumps(build_vectors(), indent=1) + "\n")
