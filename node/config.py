"""The node's settings and their valid values."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from node.defaults import LEAST_MBIT, MAX_FEE_GWEI
from node.secrecy import is_private_key

Port = Annotated[int, Field(ge=0, le=65_535)]


class NodeConfig(BaseModel):
    """Settings of one node. Every field's description is what `--help` and the documentation show."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    role: Literal["trainer", "worker", "validator", "relay"] = Field(
        description="What this node does in the run: trainer, worker, validator or relay."
    )
    join: str | None = Field(
        default=None, description="Join string of the run (intellect://..), or a file that holds it."
    )
    spec: Path | None = Field(
        default=None, description="File with the run's spec; for operators, while no relay serves it yet."
    )
    data: Path = Field(
        default=Path("~/.intellect-node"), description="Folder for the node's key, checkpoints, state and logs."
    )
    key: Path | None = Field(
        default=None,
        description="File of the node's ed25519 key; without it, node.key in the data folder, made at the first start.",
    )
    wallet: str | None = Field(
        default=None,
        description="Wallet to credit: its address, or the file of its key (then wallet and node both sign the registration).",
    )
    wallet_password_file: Path | None = Field(
        default=None, description="File with the password of an encrypted wallet file."
    )
    operator_key: Path | None = Field(default=None, description="Key file of the operator account, which pays gas.")
    operator_password_file: Path | None = Field(
        default=None, description="File with the password of an encrypted operator key."
    )
    confirmations: int = Field(
        default=0,
        ge=0,
        le=256,
        description="How deep a block of the ledger must lie before the node acts on it; 0 means 1 on a development "
        "chain and 3 elsewhere.",
    )
    max_fee_gwei: int = Field(
        default=MAX_FEE_GWEI,
        ge=0,
        le=10**9,
        description="The most that a transaction offers for a unit of gas, in gwei; 0 means no limit.",
    )
    model: Path | None = Field(
        default=None, description="A trainer's folder of the base model; without it, the built-in model."
    )
    host: str = Field(default="127.0.0.1", description="Address to listen on; 0.0.0.0 means every interface.")
    port: Port = Field(default=0, description="TCP port of the DHT; 0 takes a free one.")
    http_port: Port = Field(default=0, description="TCP port of a relay's HTTP service; 0 takes a free one.")
    http_url: str | None = Field(
        default=None, description="URL under which others reach a relay; without it, host and port."
    )
    tls_certificate: Path | None = Field(
        default=None, description="A relay's certificate with its chain (PEM); the relay then serves https only."
    )
    tls_key: Path | None = Field(
        default=None, description="The certificate's key (PEM), if it is not in the same file."
    )
    relay_ca: Path | None = Field(
        default=None,
        description="File of certificate authorities (PEM) to trust for relays, besides the system's.",
    )
    announce: tuple[str, ...] = Field(
        default=(), description="Multiaddresses under which others reach this node's DHT."
    )
    status_port: Port = Field(default=0, description="Port of the status page; 0 takes a free one.")
    status_host: str = Field(
        default="127.0.0.1",
        description="Address of the status page; on any address but loopback, everybody who can reach it can see it.",
    )
    rpc: tuple[str, ...] = Field(default=(), description="URLs of ledger end-points, besides those of the join string.")
    peer: tuple[str, ...] = Field(
        default=(), description="Multiaddresses of DHT peers, besides those of the join string."
    )
    relay: tuple[str, ...] = Field(default=(), description="Base URLs of relays, besides those of the join string.")
    sponsor: bool = Field(
        default=False, description="This relay pays the gas of others' registrations, from its operator key."
    )
    archive: bool = Field(
        default=False,
        description="This relay keeps everything that an audit of the run needs, as far as max_disk allows.",
    )
    sponsor_hourly: int = Field(default=120, ge=0, description="How many registrations a sponsor pays for in an hour.")
    upload_limit: int = Field(
        default=0,
        ge=0,
        le=10**6,
        description="Mbit/s that weights and rollouts may use of the line for sending; 0 means no limit.",
    )
    download_limit: int = Field(default=0, ge=0, le=10**6, description="The same for receiving.")
    max_disk: int = Field(default=20 * 2**30, ge=2**20, description="Bytes that the node may use in its data folder.")
    threads: int = Field(default=0, ge=0, le=1024, description="Threads for running the model; 0 lets PyTorch choose.")
    device: str = Field(
        default="cpu",
        pattern=r"^(cpu|cuda(:\d+)?)$",
        description="Where the model runs: cpu, cuda, or one card as cuda:1.",
    )
    engine: Literal["transformers", "vllm"] = Field(
        default="transformers",
        description="What runs the model of a worker or validator: transformers, or vllm (installed as an extra).",
    )
    tensor_parallel: int = Field(default=1, ge=1, le=64, description="GPUs that vLLM spreads one model over.")
    gpu_share: float = Field(default=0.85, gt=0, le=0.98, description="Share of a GPU's memory that vLLM may use.")
    ranks: int = Field(
        default=0,
        ge=0,
        le=1024,
        description="Processes that the trainer's learner is spread over; 0 means one for each GPU, or one on a CPU.",
    )
    pass_tokens: int = Field(
        default=0,
        ge=0,
        le=10**8,
        description="Tokens in one forward pass of the trainer: as many as its memory allows; 0 means the run's micro_batch.",
    )
    checkpoint_activations: bool = Field(
        default=False,
        description="The trainer computes activations twice instead of keeping them: less memory, for large models.",
    )
    log_level: Literal["debug", "info", "warning"] = Field(
        default="info", description="The least level shown on the terminal: debug, info or warning."
    )

    @field_validator(
        *("join", "spec", "key", "wallet", "wallet_password_file", "operator_key", "operator_password_file"),
        *("model", "http_url", "tls_certificate", "tls_key", "relay_ca"),
        mode="before",
    )
    @classmethod
    def _is_given(cls, value: object) -> object:
        return None if value == "" else value  # `init` writes "" where nothing is set

    @field_validator("wallet", "wallet_password_file", "key", "operator_key", "operator_password_file", mode="before")
    @classmethod
    def _is_no_secret(cls, value: object) -> object:
        if is_private_key(str(value)):
            raise ValueError(
                "this is a private key itself, and now stands in your shell's history: make another one "
                "(intellect-node keys new --operator FILE) and name its file"
            )
        return value

    @field_validator("data", mode="before")
    @classmethod
    def _is_a_folder(cls, value: object) -> object:
        if value == "":
            raise ValueError("a folder is meant; without this setting it is ~/.intellect-node")
        return value

    @field_validator("upload_limit", "download_limit")
    @classmethod
    def _is_enough(cls, value: int) -> int:
        if 0 < value < LEAST_MBIT:
            raise ValueError(f"{value} Mbit/s are too few to take part with; at least {LEAST_MBIT}, or 0 for no limit")
        return value

    @property
    def home(self) -> Path:
        """The data folder with `~` resolved."""
        return self.data.expanduser()

    @property
    def key_path(self) -> Path:
        """Where the node's key is."""
        return self.key.expanduser() if self.key else self.home / "node.key"


LISTS = tuple(name for name, field in NodeConfig.model_fields.items() if field.default == ())
"""Settings that may be given several times."""
