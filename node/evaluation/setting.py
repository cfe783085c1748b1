"""Turns the command lines of `eval` and `filter` into objects: the task, the engine, the plan."""

from __future__ import annotations

import argparse
import hashlib
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from node.errors import ConfigError

if TYPE_CHECKING:
    from node.evaluation.sampling import Plan
    from node.parsing import Parser
    from roles.inference.engine import Engine
    from roles.tasks import Task
    from roles.turns import ToolUse

MAX_TOKENS = 256
TOOL_TOKENS = 64
"""Tokens of one tool answer, the default of a run."""


def add_sampling_flags(parser: Parser, *, samples: int) -> None:
    """Flags both commands share."""
    parser.add_argument("--task", required=True, help="name of a task, such as arithmetic, maths or reasoning-gym")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a parameter of the task")
    parser.add_argument("--file", type=Path, help="data set of the task (JSON lines or Parquet)")
    parser.add_argument("--problems", type=int, help="how many problems, from the first (default: all)")
    parser.add_argument("--samples", type=int, default=samples, help="completions to sample for each problem")
    parser.add_argument(
        "--temperature", type=float, default=1.0, help="temperature of the sampling; 0 takes the likeliest token"
    )
    parser.add_argument(
        "--max-tokens",
        type=int,
        help=f"most tokens of a completion (default: {MAX_TOKENS}, or what the model has positions for)",
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of the sampling")
    parser.add_argument("--batch", type=int, default=64, help="how many completions to sample at once")
    parser.add_argument(
        "--dtype", choices=("float32", "bfloat16", "float16"), default="float32", help="dtype to compute in"
    )
    parser.add_argument(
        "--engine", choices=("transformers", "vllm"), default="transformers", help="what runs the model"
    )
    parser.add_argument("--device", default="cpu", help="cpu, cuda or cuda:0 and so on")
    parser.add_argument("--chat", action="store_true", help="put prompts into the tokenizer's chat template")
    parser.add_argument("--tool", help="a tool that the policy may call, such as calculator")
    parser.add_argument("--tool-set", action="append", default=[], metavar="KEY=VALUE", help="a parameter of the tool")
    parser.add_argument("--max-calls", type=int, default=8, help="calls of the tool in one completion, at most")
    parser.add_argument("--keep", type=Path, help="file to keep the scores in: a killed command continues from it")


def load_asked_task(options: argparse.Namespace) -> Task:
    """The task named on the command line. Raises ConfigError."""
    from node.data_sets import place_data_set
    from roles.tasks import TaskError, load_task

    parameters = dict(_parameter(text) for text in options.set)
    with tempfile.TemporaryDirectory() as folder:  # the task is read completely and does not need its file afterwards
        if options.file is not None:
            parameters["data"] = place_data_set(options.file, Path(folder))
        try:
            return load_task(options.task, parameters, Path(folder))
        except TaskError as error:
            raise ConfigError(str(error)) from error


def load_asked_tool(options: argparse.Namespace) -> ToolUse | None:
    """The tool, if one is asked for. Raises ConfigError."""
    from roles.tasks import TaskError
    from roles.turns import ToolUse, load_tool

    if options.tool is None:
        return None
    if options.max_calls < 1:
        raise ConfigError("--max-calls must be at least 1")
    try:
        tool = load_tool(options.tool, dict(_parameter(text) for text in options.tool_set))
    except TaskError as error:
        raise ConfigError(str(error)) from error
    return ToolUse(tool, options.max_calls, TOOL_TOKENS)


def load_asked_engine(options: argparse.Namespace, checkpoint: Path, *, engine: Engine | None = None) -> Engine:
    """An engine that holds the checkpoint: the given one, reloaded, or a new one. Raises ConfigError."""
    from node.engines import build_engine
    from roles.inference.errors import BadCheckpoint, InferenceError

    if not checkpoint.is_dir():
        raise ConfigError(f"{checkpoint} is no folder; a checkpoint is one with config.json and *.safetensors")
    try:
        if engine is None:
            engine = build_engine(options.device, dtype=options.dtype, chat=options.chat, engine=options.engine)
        engine.load(checkpoint)
    except (BadCheckpoint, InferenceError) as error:
        raise ConfigError(str(error)) from error
    return engine


def plan_of(options: argparse.Namespace, checkpoint: Path, task: Task, use: ToolUse | None) -> Plan:
    """The sampling plan. Raises ConfigError for invalid numbers."""
    from node.evaluation.sampling import Plan
    from roles.inference.sampling import SamplingSettings

    problems = task.size if options.problems is None else min(options.problems, task.size)
    most = options.max_tokens if options.max_tokens is not None else _longest(options, checkpoint, task, problems)
    if problems < 1 or options.samples < 1 or options.batch < 1 or most < 1:
        raise ConfigError("--problems, --samples, --batch and --max-tokens must be at least 1")
    try:
        settings = SamplingSettings(options.temperature, top_p=1.0, top_k=0, max_tokens=most)
    except ValueError as error:
        raise ConfigError(str(error)) from error
    tool = f"{use.tool.digest}/{use.max_calls}/{use.max_tokens}" if use else ""
    return Plan(
        weights_digest(checkpoint),
        task.digest,
        problems,
        options.samples,
        options.seed,
        settings,
        tool,
        _manner(options),
    )


def _manner(options: argparse.Namespace) -> str:
    """The remaining options that affect a completion; empty for the defaults."""
    chosen = (options.dtype, options.engine, "chat" if options.chat else "")
    return "" if chosen == ("float32", "transformers", "") else "/".join(chosen)


def _longest(options: argparse.Namespace, checkpoint: Path, task: Task, problems: int) -> int:
    """The default maximum length of a completion in tokens: what fits into the positions of every model involved."""
    from node.fitting import room_after

    prompts = [task.prompt(number) for number in range(problems)]
    models = (checkpoint, options.checkpoint, getattr(options, "against", None))
    rooms = [room_after(prompts, model, chat=options.chat) for model in dict.fromkeys(models) if model is not None]
    return max(1, min([MAX_TOKENS, *(room for room in rooms if room is not None)]))


def weights_digest(checkpoint: Path) -> str:
    """SHA-256 over the names and bytes of the model's files, so that changed weights count as another evaluation."""
    hashed = hashlib.sha256()
    for path in sorted(checkpoint.glob("*")):
        if path.suffix in (".safetensors", ".json"):
            hashed.update(path.name.encode() + b"\0")
            with path.open("rb") as file:
                hashed.update(hashlib.file_digest(file, "sha256").digest())
    return hashed.hexdigest()


def _parameter(text: str) -> tuple[str, int | str]:
    key, sign, value = text.partition("=")
    if not sign or not key:
        raise ConfigError(f"--set {text}: KEY=VALUE is meant, such as --set size=100")
    return key, int(value) if value.isascii() and value.removeprefix("-").isdigit() else value
