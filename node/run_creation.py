"""From a run's draft to its spec and its entry on the ledger: fills in digests, operators and the contract.

A draft is the run spec as TOML without what can be computed: the model's files, the task's size and digest, the ledger.
What a draft does state is kept, so a complete spec is a draft too.
"""

from __future__ import annotations

import json
import math
import tempfile
import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from pydantic import ValidationError

from dht.rows import Caps
from ledger.records import Operator
from node.amounts import parse_amount
from node.base_model import model_files
from node.data_sets import place_data_set
from node.defaults import MAX_CONFIG_BYTES
from node.errors import ConfigError, UsageError
from node.fitting import check_fit
from node.parsing import nearest
from roles.spec import FLOAT32_CHECKS, MAX_BUCKETS, RunSpec

if TYPE_CHECKING:
    from roles.tasks import Task

VERDICT_BYTES = 800
"""Approximate size of one verdict row."""


@dataclass(frozen=True, slots=True)
class ChainPlace:
    """The contract that a run is on, as its spec pins it."""

    chain_id: int
    contract: str
    code_hash: str
    block_hash: str


NOWHERE = ChainPlace(0, "0x" + "00" * 20, "0" * 64, "0" * 64)
"""Placeholder for the ledger while a draft is only checked."""


def read_draft(path: Path | None) -> dict[str, Any]:
    """A draft from a file, or the built-in one. Raises ConfigError."""
    if path is None:
        return tomllib.loads(resources.files("node.testnet").joinpath("run.toml").read_text())
    try:
        with path.expanduser().open("rb") as file:
            content = file.read(MAX_CONFIG_BYTES + 1)
        if len(content) > MAX_CONFIG_BYTES:
            raise ConfigError(f"the run's draft {path} is longer than {MAX_CONFIG_BYTES} bytes")
        return _from_its_folder(tomllib.loads(content.decode()), path.expanduser().absolute().parent)
    except OSError as error:
        raise ConfigError(f"cannot read the run's draft {path}: {error.strerror}") from error
    except (UnicodeDecodeError, RecursionError) as error:
        raise ConfigError(f"the run's draft {path} is not TOML text") from error
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"the run's draft {path} is not valid TOML: {error}") from error


def build_spec(
    draft: dict[str, Any],
    *,
    model: Path,
    place: ChainPlace,
    validators: Sequence[Operator] = (),
    trainers: Sequence[Operator] = (),
    data_sets: Path | None = None,
) -> RunSpec:
    """Complete a draft. If `data_sets` is given, data sets that its tasks name are copied there under their digests.
    Raises ConfigError naming what is wrong."""
    full = dict(draft)
    full["model"] = {"files": model_files(model), "name": model.name, **draft_table(draft, "model")}
    if full["model"].get("dtype", "float32") == "float32":
        full["checks"] = {**FLOAT32_CHECKS, **draft_table(draft, "checks")}
    loaded = _load_tasks(draft, data_sets)
    full["tasks"] = [plain for plain, _ in loaded]
    if "rewards" in draft:
        full["rewards"] = _in_base_units(draft_table(draft, "rewards"))
    if "tool" in draft:
        full["tool"] = _complete_tool(draft_table(draft, "tool"))
    full["ledger"] = {
        "chain_id": place.chain_id,
        "contract": place.contract,
        "code_hash": place.code_hash,
        "deployment_block_hash": place.block_hash,
        **draft_table(draft, "ledger"),
    }
    full |= _operators(draft, validators=validators, trainers=trainers)
    spec = _validated(full)
    if "buckets" not in draft:
        spec = spec.model_copy(update={"buckets": _count_buckets(spec)})
    check_fit(spec, [task for _, task in loaded], model)
    return spec


def _in_base_units(rewards: dict[str, Any]) -> dict[str, Any]:
    """Rewards with amounts in base units. A draft may give them with a unit of the chain's coin, such as `0.5eth`."""
    plain = dict(rewards)
    for name in ("budget", "min_stake"):
        text = rewards.get(name)
        if not isinstance(text, str) or text.isdecimal():
            continue
        if rewards.get("token"):
            raise ConfigError(f"the run's draft: rewards.{name}: {text[:40]!r}: amounts of a token in base units only")
        try:
            plain[name] = str(parse_amount(text))
        except UsageError as error:
            raise ConfigError(f"the run's draft: rewards.{name}: {error}") from error
    return plain


def _count_buckets(spec: RunSpec) -> int:
    """Number of buckets at which the verdicts on one step's submissions fill each key at most half."""
    groups = max(spec.training.batch_groups, spec.training.max_groups)
    submissions = math.ceil(groups / spec.sampling.groups_per_submission)
    held = min(Caps().bytes_per_key / (len(spec.validators) * VERDICT_BYTES), Caps().rows_per_signer)
    return min(max(1, math.ceil(submissions / (held / 2))), MAX_BUCKETS)


def _load_tasks(draft: dict[str, Any], folder: Path | None) -> list[tuple[dict[str, Any], Task]]:
    tasks = draft.get("tasks", [])
    if not isinstance(tasks, list) or not all(isinstance(task, dict) for task in tasks):
        raise ConfigError("the run's draft: tasks is a list of tables: [[tasks]] and below it name = ..")
    with tempfile.TemporaryDirectory() as temporary:
        return [_load_task(task, folder or Path(temporary)) for task in tasks]


def _operators(draft: dict[str, Any], **given: Sequence[Operator]) -> dict[str, Any]:
    """The operators given by the program, otherwise the draft's. Raises ConfigError where neither names any."""
    for name, operators in given.items():
        if not operators and name not in draft:
            raise ConfigError(f"the draft names no {name}: add [[{name}]] with node, operator and payout")
    return {
        name: [{"node": o.node, "operator": o.operator, "payout": o.payout} for o in operators]
        for name, operators in given.items()
        if operators
    }


def _validated(full: dict[str, Any]) -> RunSpec:
    try:
        return RunSpec.model_validate_json(json.dumps(full))  # JSON mode accepts a list for a tuple
    except ValidationError as error:
        raise ConfigError(f"the run's draft: {_first(error)}") from error
    except (TypeError, ValueError) as error:
        raise ConfigError("the run's draft holds a date, a time or another value no setting takes") from error


def draft_table(draft: dict[str, Any], name: str) -> dict[str, Any]:
    """A table of a draft; empty when missing. Raises ConfigError if the name is not a table."""
    value = draft.get(name, {})
    if isinstance(value, dict):
        return value
    raise ConfigError(f"the run's draft: {name} is a table: [{name}] and below it its settings")


def _first(error: ValidationError) -> str:
    first = error.errors(include_url=False, include_input=False)[0]
    place = ".".join(map(str, first["loc"])) or "as a whole"
    match first["type"]:
        case "extra_forbidden":
            close = nearest(str(first["loc"][-1]), _known_beside(first["loc"]))
            return f"{place}: there is no such setting{f'; did you mean {close}?' if close else ''}"
        case "missing":
            return f"{place}: this setting is needed"
        case "string_type":
            return f'{place}: a text in quotation marks is meant, also for decimals: "1.0"'
        case "string_pattern_mismatch":
            return f"{place}: not in the form it must have ({first.get('ctx', {}).get('pattern', '')})"
    return f"{place}: {first['msg'].removeprefix('Value error, ')}"


def _known_beside(place: Sequence[int | str]) -> Iterable[str]:
    """The settings that exist in the same table as this one."""
    table: Any = RunSpec
    for name in place[:-1]:
        if isinstance(name, str):
            table = _table_in(table.model_fields[name].annotation)
    return tuple(table.model_fields)


def _table_in(kind: Any) -> Any:
    """The table type of a setting, or of the items of its list."""
    if hasattr(kind, "model_fields"):
        return kind
    return next(filter(None, map(_table_in, get_args(kind))), None)


def _load_task(task: dict[str, Any], folder: Path) -> tuple[dict[str, Any], Task]:
    """The spec's entry for a task, and the task."""
    from roles.tasks import TaskError, load_task

    parameters, rest = dict(draft_table(task, "parameters")), {key: task[key] for key in task if key != "file"}
    if "file" in task:
        parameters["data"] = place_data_set(Path(str(task["file"])), folder)
    try:
        loaded = load_task(str(task.get("name", "")), parameters, folder)
    except TaskError as error:
        raise ConfigError(f"{task['file']}: {error}" if "file" in task else str(error)) from error
    return {"size": loaded.size, "digest": loaded.digest, **rest, "parameters": parameters}, loaded


def _complete_tool(tool: dict[str, Any]) -> dict[str, Any]:
    from roles.tasks import TaskError
    from roles.turns.tool import load_tool

    try:
        loaded = load_tool(str(tool.get("name", "")), draft_table(tool, "parameters"))
    except TaskError as error:
        raise ConfigError(str(error)) from error
    return {"digest": loaded.digest, **tool}


def _from_its_folder(draft: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Resolve the file names in a draft relative to the draft's own folder."""
    for task in draft.get("tasks", []) if isinstance(draft.get("tasks"), list) else []:
        if isinstance(task, dict) and "file" in task:
            task["file"] = str(folder / Path(str(task["file"])).expanduser())
    return draft
