"""The node's settings: built-in values, then a TOML file, then INTELLECT_NODE_* variables, then flags; the last wins."""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from node.defaults import LEAST_MBIT, MAX_CONFIG_BYTES, MAX_FEE_GWEI
from node.errors import UsageError
from node.secrecy import is_private_key

PREFIX = "INTELLECT_NODE_"
LISTS = ("rpc", "peer", "relay", "announce")
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
        return None if value == "" else value  # as `init` writes it where nothing is set

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


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting as it will be used, and where its value comes from."""

    value: Any
    source: str


@dataclass(frozen=True, slots=True)
class Sources:
    """Every place a setting may come from, read; `given` maps each setting named anywhere to the last word about it."""

    given: Mapping[str, Setting]

    @classmethod
    def read(
        cls,
        *,
        file: Path | None,
        environment: Mapping[str, str],
        flags: Mapping[str, Any],
        first: Mapping[str, Any] | None = None,
    ) -> Sources:
        """`first` is the command's own default. Raises UsageError for a file or an unknown name."""
        given = {name: Setting(value, "default") for name, value in (first or {}).items()}
        if file is not None:
            given |= {name: Setting(value, str(file)) for name, value in _read_file(file).items()}
        for name, value in _read_environment(environment).items():
            given[name] = Setting(value, f"{PREFIX}{name.upper()}")
        for name, value in flags.items():
            if value is not None:
                given[name] = Setting(value, f"--{name.replace('_', '-')}")
        return cls(given)

    def merge(self) -> NodeConfig:
        """The settings. Raises UsageError naming source and field."""
        values = {name: setting.value for name, setting in self.given.items()}
        try:
            return NodeConfig.model_validate(values)
        except ValidationError as error:
            raise UsageError(self._sentence(error, values)) from error

    def _sentence(self, error: ValidationError, values: Mapping[str, Any]) -> str:
        found = self.given.get(str((*error.errors()[0]["loc"], "")[0]))
        said = _sentence(error, values)
        return f"{said} (in {found.source})" if found and not found.source.startswith("--") else said

    def explain(self) -> dict[str, Setting]:
        """Every setting with its value as used and its source; those nobody named with their default."""
        config = self.merge()
        return {
            name: Setting(getattr(config, name), self.given[name].source if name in self.given else "default")
            for name in NodeConfig.model_fields
        }


def load_config(*, file: Path | None, environment: Mapping[str, str], flags: Mapping[str, Any]) -> NodeConfig:
    """Merge the sources and check the result. Raises UsageError naming source and field."""
    return Sources.read(file=file, environment=environment, flags=flags).merge()


def _read_file(path: Path) -> dict[str, Any]:
    try:
        with path.expanduser().open("rb") as file:
            content = file.read(MAX_CONFIG_BYTES + 1)
        if len(content) > MAX_CONFIG_BYTES:
            raise UsageError(f"the configuration {path} is longer than {MAX_CONFIG_BYTES} bytes")
        plain = tomllib.loads(content.decode())
    except OSError as error:
        raise UsageError(f"cannot read the configuration {path}: {error.strerror}") from error
    except (UnicodeDecodeError, RecursionError) as error:
        raise UsageError(f"the configuration {path} is not TOML text") from error
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"the configuration {path} is not valid TOML: {error}") from error
    for name in plain:
        _check_known(name, where=str(path))
    return plain


def _read_environment(environment: Mapping[str, str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in environment.items():
        if not name.startswith(PREFIX) or name.startswith((f"{PREFIX}TESTNET", f"{PREFIX}PARENT", f"{PREFIX}CONFIG")):
            continue
        field = name.removeprefix(PREFIX).lower()
        _check_known(field, where=f"the environment variable {name}")
        found[field] = tuple(filter(None, value.split(","))) if field in LISTS else value
    return found


def _check_known(name: str, *, where: str) -> None:
    if name in NodeConfig.model_fields:
        return
    close = difflib.get_close_matches(name, NodeConfig.model_fields, n=1)
    hint = f"; did you mean {close[0]}?" if close else f"; known are {', '.join(NodeConfig.model_fields)}"
    raise UsageError(f"{where}: unknown setting {name[:64]!r}{hint}")


def _sentence(error: ValidationError, given: Mapping[str, Any]) -> str:
    first = error.errors(include_url=False, include_input=False)[0]
    name = ".".join(map(str, first["loc"]))
    if first["type"] == "missing":
        return f"no {name} given: add --{name.replace('_', '-')}, or {name} = .. to the configuration"
    if first["type"] == "literal_error":
        words = get_args(NodeConfig.model_fields[name].annotation)
        close = difflib.get_close_matches(str(given.get(name)), words, n=1)
        hint = f"; did you mean {close[0]}?" if close else ""
        return f"setting {name}: {str(given.get(name))[:64]!r} is not one of {', '.join(words)}{hint}"
    value = str(given.get(str(first["loc"][0])))[:64]
    bound = next(iter(first.get("ctx", {}).values()), None)
    match first["type"]:
        case "int_parsing" | "int_type" | "int_from_float" | "int_parsing_size":
            said = f"{value!r} is not a whole number"
        case "less_than_equal":
            said = f"{value} is too large, at most {bound}"
        case "greater_than_equal":
            said = f"{value} is too small, at least {bound}"
        case "string_pattern_mismatch":
            said = f"{value!r} is not known; it may be cpu, cuda or cuda:0, cuda:1 and so on"
        case "tuple_type":
            said = f'a list is meant: {name} = ["{value}"]'
        case _:
            said = first["msg"].removeprefix("Value error, ")
    return f"setting {name}: {said}"
