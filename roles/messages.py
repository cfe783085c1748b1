"""Every message of the protocol: fields, bounds, kind, key, subkey, size limit and lifetime. Pure.

A message travels as the payload of a `dht.envelope.Envelope`. The key and subkey it belongs under are fixed here; a row
found anywhere else is refused (`open_row`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer

from dht.encoding import Digest, Message, Natural, decode, digest
from dht.envelope import Envelope
from dht.errors import Malformed

MESSAGE_VERSION = 1
SHARE_ALL = 2**64
"""`share` of an open step that admits every index."""

NodeName = Annotated[str, Field(min_length=40, max_length=64, pattern=r"^12D3KooW[1-9A-HJ-NP-Za-km-z]+$")]
Short = Annotated[str, Field(max_length=64)]
Address = Annotated[str, Field(max_length=256)]
HalfDigest = Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]
"""The first 16 bytes of a digest: enough to identify one that was published before."""
Role = Literal["trainer", "worker", "validator", "relay"]
ROLES: tuple[Role, ...] = ("trainer", "worker", "validator", "relay")


class NodeRecord(Message):
    """A node's heartbeat. Workers publish no address."""

    kind: Literal["node/1"] = "node/1"
    node: NodeName
    role: Role
    addresses: Annotated[tuple[Address, ...], Field(max_length=8)] = ()
    http: Annotated[str, Field(max_length=256)] = ""  # a relay's base URL
    software: Short
    message_version: Natural = MESSAGE_VERSION
    hardware: Annotated[str, Field(max_length=256)] = ""
    load_permille: Natural = 0
    policy_step: Natural = 0
    disk_free: Natural = 0  # bytes
    boot: Annotated[str, Field(pattern=r"^[0-9a-f]{16}$")]  # new at each start: tells a restart from a second process
    state: Literal["online", "offline"] = "online"


class OpenStep(Message):
    """Demand for one step: index `i` is valid when `i < limit` and `H(seed) < share` (of 2**64)."""

    step: Natural
    limit: Annotated[int, Field(ge=0, le=1_000_000)]
    share: Annotated[int, Field(ge=0, le=SHARE_ALL)]


class Head(Message):
    """What the leading trainer is collecting now. `step` 0 means nothing yet."""

    kind: Literal["head/1"] = "head/1"
    term: Natural
    step: Natural
    policy_step: Natural
    manifest: Digest  # newest committed
    groups_wanted: Natural
    state: Literal["collecting", "waiting", "saturated", "ended"]
    open_steps: Annotated[tuple[OpenStep, ...], Field(max_length=16)] = ()


class CheckpointRow(Message):
    """A manifest's digest. The row's hint lists the relays that have it."""

    kind: Literal["checkpoint/1"] = "checkpoint/1"
    term: Natural
    step: Natural
    manifest: Digest


class FileEntry(Message):
    """One file of a checkpoint. Files are concatenated in manifest order and cut into shards."""

    name: Annotated[str, Field(min_length=1, max_length=128, pattern=r"^[A-Za-z0-9_][A-Za-z0-9._-]*$")]
    size: Natural


class UsedGroups(Message):
    """The groups of one submission that a step used, by their number within it."""

    submission: Digest
    groups: Annotated[tuple[Annotated[int, Field(ge=0, lt=1024)], ...], Field(min_length=1, max_length=1024)]


class StateRef(Message):
    """The newest trainer state (`roles.trainer.sealed_state`) when a checkpoint was made:
    its step and its index blob."""

    step: Natural
    index: Digest
    size: Annotated[int, Field(ge=1, le=8 * 2**20)]  # bytes of the index


class CheckpointManifest(Message):
    """The contents of a checkpoint. `weights` is SHA-256 over the ordered shard digests (raw bytes), so no second pass
    over the data is needed.

    `used` and `state` are for the next leader: what has been trained on already, and where the
    optimizer's state is stored.
    """

    kind: Literal["manifest/2"] = "manifest/2"
    run: Digest
    term: Natural
    step: Natural
    parent: Digest  # manifest digest of the checkpoint before; zeros for the first
    weights: Digest
    files: Annotated[tuple[FileEntry, ...], Field(min_length=1, max_length=256)]
    shard_size: Annotated[int, Field(ge=1024, le=2**30)]
    shards: Annotated[tuple[Digest, ...], Field(min_length=1, max_length=100_000)]
    used: Annotated[tuple[UsedGroups, ...], Field(max_length=10_000)] = ()
    state: StateRef | None = None


class CheckpointDelta(Message):
    """The difference between two checkpoints, cut into shards as a checkpoint is. The rebuilt checkpoint is checked
    against its own manifest, so a delta is only a shorter way to get it."""

    kind: Literal["delta/1"] = "delta/1"
    run: Digest
    term: Natural
    step: Natural  # of the target
    target: Digest  # manifest digest of the checkpoint it rebuilds
    base: Digest  # manifest digest of the checkpoint it needs
    size: Annotated[int, Field(ge=1, lt=2**63)]  # bytes
    shard_size: Annotated[int, Field(ge=1024, le=2**30)]
    shards: Annotated[tuple[Digest, ...], Field(min_length=1, max_length=100_000)]

    @property
    def files(self) -> tuple[FileEntry, ...]:
        """The delta as a single file, so that it is cut and fetched as a checkpoint is."""
        return (FileEntry(name="delta", size=self.size),)


class Submission(Message):
    """Rollout groups of one assigned index, given by the digest of their Parquet blob."""

    kind: Literal["submission/1"] = "submission/1"
    run: Digest
    node: NodeName
    step: Natural
    index: Annotated[int, Field(ge=0, lt=1_000_000)]
    policy_step: Natural
    policy: Digest  # manifest digest of the weights used
    predecessor: Digest  # submission digest of the previous admitted index; zeros for the first of a step
    blob: Digest
    size: Natural  # bytes of the blob
    groups: Annotated[int, Field(ge=1, le=1024)]
    completions: Annotated[int, Field(ge=1, le=65_536)]
    tokens: Natural  # output tokens: the units, checked against the blob


class JoinedStatistics(Message):
    """How much a submission deviates as a whole (`roles.toploc.joined`). Anyone can recompute `rarity` without the
    model, from the sums, the lengths in the blob and the spec, unless a single completion is the rarest part."""

    rarity: Natural  # thousandths of -log10 p
    exponents: Natural  # thousandths: the mean per unit divided by its honest level
    mantissas: Natural
    margins: Natural


class Statistics(Message):
    """What an audit measured over a whole submission, in thousandths except for counts."""

    exponent_mismatches: Natural  # largest of any chunk
    mantissa_mean: Natural  # thousandths, largest of any chunk
    mantissa_median: Natural  # thousandths, largest of any chunk
    margin_mean: Natural  # thousandths, largest of any completion: mean of min(margin, 5)
    tokens_exact: Natural  # thousandths of the tokens that equal what seeded sampling gives
    joined: JoinedStatistics | None = None

    @model_serializer(mode="wrap")
    def _leave_out(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Omit `joined` when unset, so that runs without the joined test encode to the same
        bytes as before it existed."""
        plain: dict[str, Any] = write(self)
        return {name: value for name, value in plain.items() if name != "joined" or value is not None}


class Verdict(Message):
    """A validator's judgement of one submission. The one with the highest sequence counts.

    In a run that seals verdicts, `salt` opens this verdict's seal (`roles.seals`), and `seen` lists the seals of other
    validators on this submission that the author held when it opened its own. Otherwise both are empty.
    """

    kind: Literal["verdict/2"] = "verdict/2"
    run: Digest
    submission: Digest
    node: NodeName
    step: Natural
    index: Natural
    outcome: Literal["accept", "fault", "soft"]
    reason: Annotated[int, Field(ge=0, le=999)]  # `roles.rules.Reason`
    audited: bool
    tokens: Natural
    statistics: Statistics | None = None
    salt: Annotated[str, Field(pattern=r"^([0-9a-f]{32})?$")] = ""
    seen: Annotated[tuple[HalfDigest, ...], Field(max_length=32)] = ()


class SealedVerdict(Message):
    """The seal of a verdict: the validator has judged this submission but does not reveal the result yet."""

    kind: Literal["seal/1"] = "seal/1"
    run: Digest
    submission: Digest
    node: NodeName  # the worker
    step: Natural
    seal: Digest


class ReceivedShare(Message):
    """Verified bytes of one checkpoint that one relay delivered."""

    relay: NodeName
    size: Annotated[int, Field(ge=1, lt=2**63)]


class Receipt(Message):
    """States that a client (worker or validator) downloaded checkpoint `step`, and from which relays;
    relays earn credit by it."""

    kind: Literal["receipt/1"] = "receipt/1"
    run: Digest
    client: NodeName
    step: Natural
    shares: Annotated[tuple[ReceivedShare, ...], Field(min_length=1, max_length=24)]


class StrikeRow(Message):
    """A validator's attestation (EIP-712) that a node is to be struck, or that its strike is to be lifted."""

    kind: Literal["strike/1"] = "strike/1"
    run: Digest
    act: Literal["strike", "lift"]
    node: NodeName
    wallet: Annotated[str, Field(pattern=r"^(0x[0-9a-fA-F]{40})?$")] = ""  # whose stake is at risk
    number: Natural
    reason: Annotated[int, Field(ge=0, le=999)]  # `roles.rules.Reason` of the first fault
    evidence: Digest
    size: Natural  # bytes of the evidence
    operator: Annotated[str, Field(pattern=r"^0x[0-9a-fA-F]{40}$")]
    signature: Annotated[str, Field(pattern=r"^[0-9a-f]{130}$")]


class UpgradeRow(Message):
    """What the run's owner requires of every node from a step on, signed by its account
    (EIP-712). Any node may relay it."""

    kind: Literal["upgrade/1"] = "upgrade/1"
    run: Digest
    number: Natural  # of the owner's requests; the highest applies
    messages: Natural  # minimum message version
    software: Annotated[str, Field(pattern=r"^\d{1,4}(\.\d{1,4}){0,2}$")]  # minimum version of this program
    step: Natural  # the first step that requires it
    by: Natural = 0  # unix seconds at which the owner expects that step; 0: not given
    signature: Annotated[str, Field(pattern=r"^[0-9a-f]{130}$")]


class TallyRow(Message):
    """A validator's attestation of an epoch's tally: the proposal's fields and the EIP-712 signature over them."""

    kind: Literal["tally/2"] = "tally/2"
    run: Digest
    epoch: Natural
    round: Natural
    closing_block: Natural
    parent_root: Digest
    root: Digest
    total: Natural
    amount: Annotated[int, Field(ge=0, lt=2**128)]  # cumulative pay, base units
    blob: Digest
    size: Natural  # bytes of the tally blob
    operator: Annotated[str, Field(pattern=r"^0x[0-9a-fA-F]{40}$")]
    signature: Annotated[str, Field(pattern=r"^[0-9a-f]{130}$")]


class UploadGrant(Message):
    """An uploader's signed permission for one relay to store one blob: single use, valid for ten minutes at most."""

    kind: Literal["grant/1"] = "grant/1"
    relay: NodeName
    blob: Digest
    size: Natural
    nonce: Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]


@dataclass(frozen=True, slots=True)
class RowRule:
    """Limits of one kind of row: bytes on the wire and lifetime in seconds."""

    message: type[Message]
    max_bytes: int
    lifetime: int


ROW_RULES: dict[str, RowRule] = {
    "node/1": RowRule(NodeRecord, 4096, 90),
    "head/1": RowRule(Head, 4096, 60),
    "checkpoint/1": RowRule(CheckpointRow, 2048, 600),
    "submission/1": RowRule(Submission, 3072, 600),
    "verdict/2": RowRule(Verdict, 4096, 600),
    "seal/1": RowRule(SealedVerdict, 2048, 600),
    "receipt/1": RowRule(Receipt, 4096, 600),
    "strike/1": RowRule(StrikeRow, 2560, 600),
    "upgrade/1": RowRule(UpgradeRow, 1024, 600),
    "tally/2": RowRule(TallyRow, 2560, 600),
    "grant/1": RowRule(UploadGrant, 2048, 600),
    "manifest/2": RowRule(CheckpointManifest, 8 * 2**20, 10 * 365 * 86400),
    "delta/1": RowRule(CheckpointDelta, 8 * 2**20, 10 * 365 * 86400),
}
DHT_KINDS = tuple(kind for kind in ROW_RULES if kind not in ("grant/1", "manifest/2", "delta/1"))
"""Kinds that live in the DHT; the others travel by HTTP only."""


def nodes_key(run: str, role: Role) -> str:
    """Key of the node records of one role."""
    return f"{run}/nodes/{role}"


def head_key(run: str) -> str:
    """Key of the heads."""
    return f"{run}/head"


def checkpoints_key(run: str) -> str:
    """Key of the checkpoint rows."""
    return f"{run}/checkpoints"


def submissions_key(run: str, step: int, bucket: int) -> str:
    """Key of a bucket's submissions of a step."""
    return f"{run}/submissions/{step}/{bucket}"


def verdicts_key(run: str, step: int, bucket: int) -> str:
    """Key of the verdicts on a bucket's submissions of a step."""
    return f"{run}/verdicts/{step}/{bucket}"


def seals_key(run: str, step: int, bucket: int) -> str:
    """Key of the sealed verdicts on a bucket's submissions of a step."""
    return f"{run}/seals/{step}/{bucket}"


def receipts_key(run: str, step: int, bucket: int) -> str:
    """Key of a bucket's receipts for a checkpoint."""
    return f"{run}/receipts/{step}/{bucket}"


def strikes_key(run: str) -> str:
    """Key of the validators' attestations of strikes."""
    return f"{run}/strikes"


def upgrades_key(run: str) -> str:
    """Key of the owner's upgrade requests, as relayed by nodes."""
    return f"{run}/upgrades"


def tally_key(run: str, epoch: int) -> str:
    """Key of an epoch's attestations."""
    return f"{run}/tally/{epoch}"


def bucket_of(node: str, buckets: int) -> int:
    """Bucket of a worker. A worker that floods mostly hurts its own bucket."""
    return int(digest("bucket/1", node)[:16], 16) % buckets


def place_of(message: Message, *, run: str, buckets: int) -> tuple[str, str]:
    """Key and subkey a message belongs under. The subkey omits the signer's id for kinds that other nodes sign."""
    match message:
        case NodeRecord():
            return nodes_key(run, message.role), message.node
        case Head():
            return head_key(run), ""
        case CheckpointRow():
            return checkpoints_key(run), f":{message.step}"
        case Submission():
            return submissions_key(
                run, message.step, bucket_of(message.node, buckets)
            ), f"{message.node}:{message.index}"
        case Verdict():
            return verdicts_key(run, message.step, bucket_of(message.node, buckets)), f":{message.submission}"
        case SealedVerdict():
            return seals_key(run, message.step, bucket_of(message.node, buckets)), f":{message.submission}"
        case Receipt():
            return receipts_key(run, message.step, bucket_of(message.client, buckets)), message.client
        case StrikeRow():
            return strikes_key(run), f":{message.node}"
        case UpgradeRow():
            return upgrades_key(run), ""
        case TallyRow():
            return tally_key(run, message.epoch), ""
        case CheckpointManifest():
            return f"{run}/manifests", f":{message.step}"
        case CheckpointDelta():
            return f"{run}/deltas", f":{message.step}:{message.base}"
        case UploadGrant():
            return f"{run}/grants", f":{message.nonce}"
    raise ValueError(f"{type(message).__name__} has no place")


def subkey_for(message: Message, *, run: str, signer: str, buckets: int) -> str:
    """Full subkey of a message from this signer."""
    _, tail = place_of(message, run=run, buckets=buckets)
    return tail if tail.startswith(signer) else signer + tail


def subject_of(row: Envelope) -> str:
    """The worker that a verdict or a seal is about; an empty string for other rows."""
    rule = ROW_RULES.get(row.kind)
    if rule is None or rule.message not in (Verdict, SealedVerdict):
        return ""
    try:
        return str(getattr(decode(rule.message, row.payload), "node", ""))
    except Malformed:
        return ""


def open_row(row: Envelope, *, run: str, buckets: int) -> Message:
    """The message in a verified envelope. Raises Malformed for an unknown kind, another run,
    or a wrong key or subkey."""
    rule = ROW_RULES.get(row.kind)
    if rule is None:
        raise Malformed(f"unknown kind of row {row.kind[:32]!r}")
    if row.run != run:
        raise Malformed("row belongs to another run")
    message = decode(rule.message, row.payload)
    key, _ = place_of(message, run=run, buckets=buckets)
    if row.key != key or row.subkey != subkey_for(message, run=run, signer=row.signer, buckets=buckets):
        raise Malformed("row stands under a key or subkey that is not its own")
    if getattr(message, "run", run) != run:
        raise Malformed("message belongs to another run")
    return message


def open_submission(row: Envelope, *, run: str, buckets: int) -> Submission:
    """The submission in a verified envelope. Raises Malformed unless the node it names signed it."""
    submission = open_row(row, run=run, buckets=buckets)
    if not isinstance(submission, Submission) or row.signer != submission.node:
        raise Malformed("not a submission of its signer")
    return submission
