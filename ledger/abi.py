"""Calls, results and events of the registry contract as bytes, from its built ABI. Pure; no chain access."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping, Sequence
from importlib import resources
from typing import Any

from eth_abi.abi import decode, encode
from eth_abi.exceptions import DecodingError, EncodingError
from eth_utils.crypto import keccak

from ledger.errors import LedgerError

ERROR_SELECTOR = bytes.fromhex("08c379a0")
"""Selector of revert data that carries a reason: `Error(string)`."""


@functools.cache
def built() -> Mapping[str, Any]:
    """The built contract: `abi`, `bytecode`, `bytecode_runtime`, `compiler`, `source_sha256`."""
    text = resources.files("ledger.contracts").joinpath("run_registry.json").read_text()
    loaded: Mapping[str, Any] = json.loads(text)
    return loaded


def selector(name: str) -> str:
    """The 4-byte selector (`0x..`) of function `name`."""
    return "0x" + _selector(_entry("function", name)).hex()


def encode_call(name: str, *arguments: object) -> str:
    """Call data (`0x..`) of function `name`. Raises LedgerError for arguments that do not fit its types."""
    entry = _entry("function", name)
    try:
        return "0x" + (_selector(entry) + encode(_types(entry["inputs"]), arguments)).hex()
    except (EncodingError, ValueError, TypeError) as error:
        raise LedgerError(f"{name}: an argument is out of range ({error})") from error


def decode_result(name: str, data: str) -> tuple[Any, ...]:
    """Decode the return data of function `name`. Raises LedgerError when the bytes are not its result."""
    try:
        return decode(_types(_entry("function", name)["outputs"]), unhex(data))
    except (DecodingError, ValueError, OverflowError, AttributeError, TypeError) as error:
        raise LedgerError(f"the contract's answer to {name} cannot be read: is the address right?") from error


def event_topic(name: str) -> str:
    """First topic (`0x..`) of event `name`."""
    return "0x" + keccak(text=_signature(_entry("event", name))).hex()


def event_names() -> tuple[str, ...]:
    """Names of the registry's events."""
    return tuple(entry["name"] for entry in built()["abi"] if entry["type"] == "event")


def decode_event(name: str, topics: Sequence[str], data: str) -> dict[str, Any]:
    """Fields of a log of event `name`. Raises LedgerError when it is another event."""
    inputs = _entry("event", name)["inputs"]
    indexed = [field for field in inputs if field["indexed"]]
    plain = [field for field in inputs if not field["indexed"]]
    try:
        values = decode(_types(plain), unhex(data))
        keys = [decode([field["type"]], unhex(topic))[0] for field, topic in zip(indexed, topics[1:], strict=True)]
    except (DecodingError, ValueError, OverflowError) as error:
        raise LedgerError(f"a {name} event of the contract cannot be read") from error
    return {field["name"]: value for field, value in zip([*indexed, *plain], [*keys, *values], strict=True)}


def revert_reason(data: bytes) -> str | None:
    """The contract's reason in revert data; None when there is none."""
    if data[:4] != ERROR_SELECTOR:
        return None
    try:
        return str(decode(["string"], data[4:])[0])
    except (DecodingError, ValueError, OverflowError):
        return None


def unhex(text: str) -> bytes:
    """Bytes of `0x..`. Raises ValueError."""
    return bytes.fromhex(text.removeprefix("0x"))


@functools.cache
def _entry(kind: str, name: str) -> Mapping[str, Any]:
    return next(entry for entry in built()["abi"] if entry["type"] == kind and entry["name"] == name)


def _selector(entry: Mapping[str, Any]) -> bytes:
    return bytes(keccak(text=_signature(entry))[:4])


def _signature(entry: Mapping[str, Any]) -> str:
    return f"{entry['name']}({','.join(_types(entry['inputs']))})"


def _types(fields: Sequence[Mapping[str, Any]]) -> list[str]:
    return [_type(field) for field in fields]


def _type(field: Mapping[str, Any]) -> str:
    kind: str = field["type"]
    if not kind.startswith("tuple"):
        return kind
    return f"({','.join(_types(field['components']))}){kind.removeprefix('tuple')}"
