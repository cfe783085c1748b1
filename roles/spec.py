"""The run spec: everything two nodes must agree on. `run.toml` -> canonical JSON -> `run_id` = SHA-256. Pure.

No floats: decimals are strings, read with `Decimal` or `float()` where they are used.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer, model_validator

from dht.encoding import Digest, Message, Natural, decode, encode, sha256
from dht.errors import Malformed, NodeError
from roles.messages import NodeName

Decimal = Annotated[str, Field(pattern=r"^\d{1,9}(\.\d{1,12})?$")]
EthAddress = Annotated[str, Field(pattern=r"^0x[0-9a-fA-F]{40}$")]
Amount = Annotated[str, Field(pattern=r"^(0|[1-9]\d{0,37})$")]
"""Base units, below 10**38 < 2**128."""
PerMille = Annotated[int, Field(ge=0, le=1000)]
Seconds = Annotated[int, Field(ge=1, le=2**32)]
MAX_SPEC_BYTES = 256 * 1024
MAX_BUCKETS = 4096


class SpecError(NodeError):
    """The run spec is wrong; the text names the field."""


class PinnedFile(Message):
    """A file of the base model, by digest."""

    name: Annotated[str, Field(min_length=1, max_length=128, pattern=r"^[A-Za-z0-9_][A-Za-z0-9._-]*$")]
    size: Natural
    sha256: Digest


class ModelSpec(Message):
    """The base model: checkpoint 0 is exactly these files."""

    name: Annotated[str, Field(max_length=64)]
    files: Annotated[tuple[PinnedFile, ...], Field(min_length=1, max_length=64)]
    engine: Literal["transformers"] = "transformers"
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"  # of the computation, and of what proofs commit to
    attention: Literal["sdpa", "eager"] = "sdpa"
    chat: bool = False  # prompts are put into the tokenizer's chat template, as the user's message


class TaskSpec(Message):
    """A finite ordered list of problems and its scorer, identified by digest."""

    name: Annotated[str, Field(max_length=64)]
    parameters: dict[str, int | str] = Field(default_factory=dict)
    size: Annotated[int, Field(ge=1, lt=2**53)]
    digest: Digest
    weight: Annotated[int, Field(ge=1, le=1000)] = 1  # share of the problems, relative to the other tasks


class LengthSpec(Message):
    """How long an answer should be: a target for each prompt is drawn from the assignment's seed, stated in the prompt
    and counted in the reward (INTELLECT-2, section 3.1.2)."""

    targets: Annotated[tuple[Annotated[int, Field(ge=1, le=1_000_000)], ...], Field(min_length=1, max_length=64)]
    alpha: Decimal = "0.0003"
    mode: Literal["exact", "max", "clip"] = "exact"
    suffix: Annotated[str, Field(max_length=1024, pattern=r"\{target\}")] = (
        "\n\nThink for {target} tokens before giving a response."
    )


class ToolSpec(Message):
    """A tool that the policy may call within a completion, identified by digest (docs/adr/0016)."""

    name: Annotated[str, Field(min_length=1, max_length=64)]
    parameters: dict[str, int | str] = Field(default_factory=dict)
    digest: Digest
    # per completion; further text that looks like a call is plain text
    max_calls: Annotated[int, Field(ge=1, le=64)] = 8
    max_tokens: Annotated[int, Field(ge=1, le=65_536)] = 64  # of one answer; a longer one is cut


class SamplingSpec(Message):
    """How completions are drawn."""

    temperature: Decimal = "1.0"
    top_p: Decimal = "1.0"
    top_k: Natural = 0  # 0: off
    max_tokens: Annotated[int, Field(ge=1, le=1_000_000)] = 44
    max_prompt_tokens: Annotated[int, Field(ge=1, le=1_000_000)] = 64
    group_size: Annotated[int, Field(ge=2, le=1024)] = 8
    groups_per_submission: Annotated[int, Field(ge=1, le=1024)] = 4


class TrainingSpec(Message):
    """GRPO numbers and the shape of a step."""

    steps: Annotated[int, Field(ge=1, le=1_000_000)] = 40
    async_level: Annotated[int, Field(ge=0, le=16)] = 2
    batch_groups: Annotated[int, Field(ge=1)] = 16
    min_batch: Annotated[int, Field(ge=1)] = 4
    max_groups: Annotated[int, Field(ge=1)] = 64
    saturated_rounds: Annotated[int, Field(ge=1)] = 3
    initial_limit: Annotated[int, Field(ge=1)] = 4
    learning_rate: Decimal = "0.0001"
    beta1: Decimal = "0.9"
    beta2: Decimal = "0.99"
    weight_decay: Decimal = "0"
    eps: Decimal = "0.2"
    delta: Decimal = "4"
    kl_coef: Decimal = "0.05"
    entropy_coef: Decimal = "0"
    max_grad_norm: Decimal = "0.5"
    optimizer_steps: Annotated[int, Field(ge=1, le=64)] = 2
    warmup_steps: Natural = 0
    micro_batch: Annotated[int, Field(ge=1)] = 64
    old_logprobs: Literal["current", "behaviour"] = "current"  # ratios compare with this policy (docs/training.md)
    loss: Literal["grpo", "tis", "cispo", "gspo", "icepop", "dppo"] = "grpo"
    loss_low: Decimal | None = None  # bounds of that loss; none: its defaults (docs/training.md)
    loss_high: Decimal | None = None

    @model_validator(mode="after")
    def _check_loss(self) -> TrainingSpec:
        if self.loss in ("tis", "icepop") and self.old_logprobs != "current":
            raise ValueError(
                f"training: {self.loss} corrects current against behaviour itself; old_logprobs must be current"
            )
        return self


class Threshold(Message):
    """The largest values that pass (honest), or that do not prove fraud; between the two a refusal is soft. In
    thousandths, except the count of mismatches."""

    exponent_mismatches: Natural
    mantissa_mean: Natural
    mantissa_median: Natural
    margin_mean: Natural  # of a completion: mean of min(margin, 5)
    margin_largest: Natural = 10**9  # of any token


class NoiseSpec(Message):
    """Noise of one statistic on honest nodes (`roles.toploc.joined`), measured by `intellect-node calibrate`.

    The mean per unit by class is in 10**-9: four classes of chunks by how full they are, or one of tokens; 0 means not
    judged. Relative variances are in 10**-6."""

    levels: Annotated[tuple[Natural, ...], Field(min_length=1, max_length=4)]
    unit: Annotated[int, Field(ge=1, lt=2**63)]
    completion: Natural
    submission: Natural


class JoinedSpec(Message):
    """The joined test of a submission and of a node's history."""

    exponents: NoiseSpec
    mantissas: NoiseSpec
    margins: NoiseSpec
    refuse_one_in: Annotated[int, Field(ge=10, le=10**12)] = 1000  # one honest submission in so many is softly refused
    fault_one_in: Annotated[int, Field(ge=0, le=10**18)] = 0  # one honest submission in so many is a fault; 0: none is
    alarm_one_in: Annotated[int, Field(ge=0, le=10**9)] = 1000  # one honest node in so many a month; 0: not judged
    month: Annotated[int, Field(ge=1, le=10**9)] = 3000  # submissions of a node in a month

    @model_validator(mode="after")
    def _check_classes(self) -> JoinedSpec:
        if [len(noise.levels) for noise in (self.exponents, self.mantissas, self.margins)] != [4, 4, 1]:
            raise ValueError("joined: chunks have four levels, and margins one")
        if 0 < self.fault_one_in < self.refuse_one_in:
            raise ValueError("joined: what is a fault is refused too, so fault_one_in is 0 or at least refuse_one_in")
        return self


class CheckSpec(Message):
    """Verification: proof format, thresholds, sizes."""

    topk: Annotated[int, Field(ge=1, le=4096)] = 128
    chunk: Annotated[int, Field(ge=1, le=4096)] = 32
    honest: Threshold = Threshold(exponent_mismatches=8, mantissa_mean=2000, mantissa_median=2000, margin_mean=50)
    fraud: Threshold = Threshold(exponent_mismatches=38, mantissa_mean=10_000, mantissa_median=8000, margin_mean=400)
    joined: JoinedSpec | None = None  # none: each chunk and completion is judged only by its own thresholds
    duplicate_bits: Natural = 64
    max_blob: Annotated[int, Field(ge=1024, le=2**34)] = 8 * 2**20
    seals: bool = False  # verdicts are sealed before they are opened; only those another validator saw sealed earn
    strikes_to_eject: Annotated[int, Field(ge=1, le=1000)] = 3  # submissions that a quorum finds at fault
    # thousandths of submissions that each validator audits, chosen by its coin
    audit_rate: Annotated[int, Field(ge=1, le=1000)] = 1000
    # seconds that an accepted submission waits for a fault before it is used
    audit_window: Annotated[int, Field(ge=0, le=86_400)] = 0
    # consecutive audits that a new node, or one found at fault, has to pass before the coin decides
    probation: Natural = 16

    @model_validator(mode="after")
    def _check_audits(self) -> CheckSpec:
        if self.audit_rate < 1000 and not self.audit_window:
            raise ValueError(
                "checks: where not everything is audited, audit_window must leave time for those who audit"
            )
        return self

    @model_serializer(mode="wrap")
    def _leave_out(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Omit `joined` for a run without the joined test. Specs and runs of earlier versions are not read, because
        sampling and proofs changed."""
        plain: dict[str, Any] = write(self)
        return {name: value for name, value in plain.items() if name != "joined" or value is not None}


FLOAT32_CHECKS: Mapping[str, Mapping[str, int]] = {
    "honest": {"exponent_mismatches": 2, "mantissa_mean": 33_000, "mantissa_median": 500, "margin_mean": 10},
    "fraud": {"exponent_mismatches": 20, "mantissa_mean": 100_000, "mantissa_median": 40_000, "margin_mean": 400},
}
"""Thresholds of a float32 draft that names none. In float32 honest engines differ far less, in units 32 times as fine. The
mean has room for one of a chunk's values that honest engines chose differently among nearly equal ones: where exponents
agree by chance, its mantissa may differ by 4095, 32 on the mean of 128. The median does not move."""


class RewardSpec(Message):
    """What is paid, in base units of the coin or token, and how an epoch's payment is split (thousandths)."""

    budget: Amount = "0"  # of one epoch; 0: units are counted, but nothing is paid
    token: EthAddress | None = None  # ERC-20; none: the chain's coin
    min_stake: Amount = "0"  # of a worker's wallet, before its submissions count
    worker: PerMille = 700
    validator: PerMille = 100
    relay: PerMille = 100
    trainer: PerMille = 100

    @model_validator(mode="after")
    def _check_sum(self) -> RewardSpec:
        if sum(self.shares().values()) > 1000:
            raise ValueError("rewards: the shares of the roles come to more than 1000 thousandths")
        return self

    def shares(self) -> dict[str, int]:
        """Thousandths of an epoch's pot, by role."""
        return {"worker": self.worker, "validator": self.validator, "relay": self.relay, "trainer": self.trainer}


class OperatorSpec(Message):
    """A trainer or validator as registered on the ledger."""

    node: NodeName
    operator: EthAddress
    payout: EthAddress


class EpochSpec(Message):
    """When a tally closes and how proposers rotate. Seconds are ledger time."""

    checkpoints: Annotated[int, Field(ge=1)] = 5
    max_seconds: Annotated[int, Field(ge=1)] = 600
    round_seconds: Annotated[int, Field(ge=1)] = 10
    beacon_blocks: Annotated[int, Field(ge=1, le=256)] = 1


class TermsSpec(Message):
    """The contract's other fixed parameters. Seconds are ledger time; payments are in `RewardSpec`."""

    lease_seconds: Seconds = 600  # how long a trainer leads without a checkpoint
    takeover_blocks: Annotated[int, Field(ge=1, le=100_000)] = 3  # between the report of a lapse and a take-over
    unbond_seconds: Seconds = 86_400  # how long a stake stays at risk once unbonding begins
    dispute_seconds: Seconds = 86_400  # how long a strike can be disputed
    change_seconds: Seconds = 86_400  # notice given before a change of validators takes effect


class BroadcastSpec(Message):
    """How checkpoints reach the relays."""

    delta: bool = True  # also publish the delta from a checkpoint's parent, where that is much smaller
    anchor_every: Annotated[int, Field(ge=1, le=1000)] = 10  # steps; the trainer sends every such checkpoint whole


class GpuSpec(Message):
    """One sufficient set of GPUs: how many, of which models (part of the name; none listed: any)
    and how much memory each."""

    count: Annotated[int, Field(ge=1, le=1024)] = 1
    models: Annotated[
        tuple[Annotated[str, Field(max_length=64, pattern="[A-Za-z0-9]")], ...], Field(max_length=32)
    ] = ()
    memory_gb: Natural = 0  # of each


class RequirementsSpec(Message):
    """What a worker's machine needs. GB are 10**9 bytes, Mbit 10**6 bits a second; 0 requires nothing."""

    gpus: Annotated[tuple[GpuSpec, ...], Field(max_length=16)] = ()  # any one suffices; none listed: no GPU needed
    cores: Natural = 0
    ram_gb: Natural = 0
    disk_gb: Natural = 0  # free, or used by the node itself
    download_mbit: Natural = 0  # from the run's relays


class LedgerSpec(Message):
    """Which contract on which chain."""

    chain_id: Natural
    contract: EthAddress
    code_hash: Digest
    deployment_block_hash: Digest


class RunSpec(Message):
    """One training run."""

    kind: Literal["run/1"] = "run/1"
    name: Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9][A-Za-z0-9 ._-]*$")]
    model: ModelSpec
    tasks: Annotated[tuple[TaskSpec, ...], Field(min_length=1, max_length=16)]
    length: LengthSpec | None = None
    tool: ToolSpec | None = None
    sampling: SamplingSpec = SamplingSpec()
    training: TrainingSpec = TrainingSpec()
    checks: CheckSpec = CheckSpec()
    epoch: EpochSpec = EpochSpec()
    terms: TermsSpec = TermsSpec()
    broadcast: BroadcastSpec = BroadcastSpec()
    rewards: RewardSpec = RewardSpec()
    requirements: RequirementsSpec = RequirementsSpec()
    buckets: Annotated[int, Field(ge=1, le=MAX_BUCKETS)] = 1
    quorum: Annotated[int, Field(ge=1)]
    validators: Annotated[tuple[OperatorSpec, ...], Field(min_length=1, max_length=64)]
    trainers: Annotated[tuple[OperatorSpec, ...], Field(min_length=1, max_length=8)]
    ledger: LedgerSpec

    @model_serializer(mode="wrap")
    def _leave_out(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Omit `tool` for a run without a tool."""
        plain: dict[str, Any] = write(self)
        return {name: value for name, value in plain.items() if name != "tool" or value is not None}

    @model_validator(mode="after")
    def _check_numbers(self) -> RunSpec:
        if 2 * self.quorum <= len(self.validators) or self.quorum > len(self.validators):
            raise ValueError("quorum must be more than half of the validators, and no more than all of them")
        training = self.training
        if not training.min_batch <= training.batch_groups <= training.max_groups:
            raise ValueError("training: min_batch <= batch_groups <= max_groups must hold")
        if float(training.delta) <= 1 + float(training.eps):
            raise ValueError("training: delta must be more than 1 + eps")
        for name, listed in (("validators", self.validators), ("trainers", self.trainers)):
            if len({item.node for item in listed}) != len(listed):
                raise ValueError(f"{name}: a node is listed twice")
        if self.checks.seals and len(self.validators) < 2:
            raise ValueError("checks: a single validator has nobody to seal its verdicts from")
        return self

    @property
    def max_output_tokens(self) -> int:
        """Longest completion in tokens: the policy's own and those that tool answers may add."""
        return self.sampling.max_tokens + (self.tool.max_calls * self.tool.max_tokens if self.tool else 0)

    @property
    def run_id(self) -> str:
        """SHA-256 of the canonical JSON."""
        return sha256(encode(self))


def spec_from_bytes(data: bytes, run_id: str) -> RunSpec:
    """A spec fetched from a peer. Raises SpecError unless its hash is the run id."""
    if len(data) > MAX_SPEC_BYTES or sha256(data) != run_id:
        raise SpecError("these bytes are not the spec of this run")
    try:
        return decode(RunSpec, data)
    except Malformed as error:
        raise SpecError(str(error)) from error
