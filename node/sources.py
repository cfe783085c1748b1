"""Where settings come from: built-in values, then a TOML file, then INTELLECT_NODE_* variables, then flags; the last wins."""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from pydantic import ValidationError

from node.config import LISTS, NodeConfig
from node.defaults import MAX_CONFIG_BYTES
from node.errors import UsageError

PREFIX = "INTELLECT_NODE_"


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting with the value used, and where it comes from."""

    value: Any
    source: str


@dataclass(frozen=True, slots=True)
class Sources:
    """All sources of settings, after reading. `given` maps each setting named anywhere to its final value."""

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
        """Read the sources. `first` holds the command's own defaults. Raises UsageError for a
        bad file or an unknown name."""
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
        """Every setting with the value used and its source; settings named nowhere have their default."""
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
