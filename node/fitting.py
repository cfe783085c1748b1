"""Whether a run's parts fit together: tokenizer and model, and the prompts and the maximum lengths that the run allows.

Checked before a run exists. Afterwards honest workers would submit what no validator can accept.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from node.errors import ConfigError
from roles.inference.errors import BadCheckpoint
from roles.inference.model_sizes import Sizes, read_sizes

if TYPE_CHECKING:
    from roles.spec import RunSpec
    from roles.tasks import Task

MOST_WORDS = 100
"""Prompts that are encoded and decoded again."""
MOST_PROMPTS = 20_000
"""Prompts that are tokenised, the longest ones."""


def check_fit(spec: RunSpec, tasks: Sequence[Task], model: Path) -> None:
    """Raises ConfigError naming what does not fit."""
    tokenizer = _read_tokenizer(model)
    sizes = _read_sizes(model)
    _check_vocabulary(tokenizer, sizes.vocabulary, model)
    _check_lengths(spec, sizes.positions)
    _check_targets(spec)
    count = _counter(tokenizer, model, chat=spec.model.chat)
    for task in tasks:
        _check_words(task, tokenizer, model)
        _check_prompts(task, spec, count)


def room_after(prompts: Sequence[str], model: Path, *, chat: bool) -> int | None:
    """Positions that a model has left after the longest of these prompts, in tokens; None where it does not state
    its number. Raises ConfigError."""
    if not (model / "config.json").is_file() or (positions := _read_sizes(model).positions) is None:
        return None
    count = _counter(_read_tokenizer(model), model, chat=chat)
    longest = heapq.nlargest(MOST_PROMPTS, prompts, key=len)
    return positions - max(map(count, longest), default=0)


def _read_tokenizer(model: Path) -> Any:
    from tokenizers import Tokenizer

    path = model / "tokenizer.json"
    if not path.is_file():
        raise ConfigError(
            f"the model folder {model} holds no tokenizer.json; save the tokenizer there in its fast form"
        )
    try:
        return Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises exactly this class
        raise ConfigError(f"{path} is not a tokenizer: {str(error)[:200]}") from error


def _read_sizes(model: Path) -> Sizes:
    try:
        return read_sizes(model)
    except BadCheckpoint as error:
        raise ConfigError(f"the model in {model} cannot be used: {error}") from error


def _check_vocabulary(tokenizer: Any, size: int, model: Path) -> None:
    largest = max(tokenizer.get_vocab(with_added_tokens=True).values(), default=-1)
    if largest >= size:
        raise ConfigError(
            f"tokenizer and model in {model} do not match: the tokenizer writes tokens up to {largest}, the model knows those "
            f"below {size}; take both from one model"
        )


def _check_lengths(spec: RunSpec, positions: int | None) -> None:
    """Check that rows of the maximum length fit the model: the trainer could not learn from
    longer ones, even if accepted."""
    most = spec.sampling.max_prompt_tokens + spec.max_output_tokens
    if positions is not None and most > positions:
        raise ConfigError(
            f"the run allows {spec.sampling.max_prompt_tokens} tokens of prompt and {spec.max_output_tokens} of completion, and "
            f"the model has {positions} positions; lower sampling.max_prompt_tokens, sampling.max_tokens, or what a tool may say"
        )


def _check_targets(spec: RunSpec) -> None:
    """Check that the lengths that answers are rewarded for are within the limit on an answer."""
    longest = max(spec.length.targets, default=0) if spec.length else 0
    if longest > spec.sampling.max_tokens:
        raise ConfigError(
            f"length.targets asks for answers of {longest} tokens, and completions end after {spec.sampling.max_tokens}; raise "
            "sampling.max_tokens, or lower the targets"
        )


def _counter(tokenizer: Any, model: Path, *, chat: bool) -> Callable[[str], int]:
    if not chat:
        return lambda text: len(tokenizer.encode(text, add_special_tokens=False).ids)
    from roles.inference.checkpoint_loading import DATED, load_tokenizer, writes_date

    try:
        talking = load_tokenizer(model)
    except BadCheckpoint as error:
        raise ConfigError(str(error)) from error
    if not talking.chat_template:
        raise ConfigError(f"[model] chat = true, and the tokenizer in {model} has no chat template")
    if writes_date(talking):
        raise ConfigError(f"[model] chat = true, and of the tokenizer in {model}: {DATED}")

    def count(text: str) -> int:
        said = [{"role": "user", "content": text}]
        whole = talking.apply_chat_template(said, tokenize=False, add_generation_prompt=True)
        return len(tokenizer.encode(whole, add_special_tokens=False).ids)

    return count


def _check_words(task: Task, tokenizer: Any, model: Path) -> None:
    """Check that the tokenizer can represent the prompts; small ones drop characters they do not know."""
    for number in range(min(task.size, MOST_WORDS)):
        prompt = task.prompt(number)
        kept = tokenizer.decode(tokenizer.encode(prompt, add_special_tokens=False).ids, skip_special_tokens=False)
        if 2 * sum(map(str.isalnum, kept)) < sum(map(str.isalnum, prompt)):
            raise ConfigError(
                f"task {task.name}: of the prompt {prompt[:40]!r} the tokenizer in {model} keeps {kept[:40]!r}; is another "
                "model meant? --model DIR"
            )


def _check_prompts(task: Task, spec: RunSpec, count: Callable[[str], int]) -> None:
    from roles.tasks.length import LengthTask

    asked, most = LengthTask(task, spec.length), spec.sampling.max_prompt_tokens
    target = max(asked.targets, default=None)
    longest = heapq.nlargest(MOST_PROMPTS, range(task.size), key=lambda number: len(task.prompt(number)))
    counted = ((count(asked.prompt(number, target)), number) for number in longest)
    over = sorted(((tokens, number) for tokens, number in counted if tokens > most), reverse=True)
    if over:
        raise ConfigError(
            f"task {task.name}: {len(over)} of {task.size} problems have longer prompts than the {most} tokens that the run "
            f"allows, the longest, problem {over[0][1] + 1}, one of {over[0][0]}; raise sampling.max_prompt_tokens, or leave "
            "them out"
        )
