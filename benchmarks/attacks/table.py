"""The results as a Markdown table that a terminal can show too, and as one line of JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.attacks.certain import Trial
from benchmarks.attacks.classes import ATTACKS, PREFILLED, Attack
from benchmarks.attacks.detecting import LIMIT, Detection, Honesty, Rate
from benchmarks.attacks.grinding import Grinding
from node.errors import ConfigError
from roles.toploc.joined import Fit

BEGIN, END = "<!-- measured -->", "<!-- end of what was measured -->"
PUBLISHED = "by 38/10/8 (made for bf16)"
WORDS = {"exponents": "proofs: exponents", "mantissas": "proofs: mantissas", "margins": "sampling margins", "": "-"}


@dataclass(frozen=True, slots=True)
class Results:
    """All results of a run."""

    model: str
    certain: Sequence[Trial]
    grinding: Grinding
    fitted: Fit | None = None
    honesty: Honesty | None = None
    counts: dict[str, int] = field(default_factory=dict)
    detections: Sequence[Detection] = ()


def says_of(name: str) -> tuple[str, Attack]:
    """The description of a claim, and its class."""
    attack = next(item for item in ATTACKS if name in item.claims())
    if name.endswith(PREFILLED):
        return f"{attack.says}; the right model prefilled it for the proofs", attack
    return attack.says, attack


def lines_of(results: Results) -> list[str]:
    """The report, line by line."""
    certain = [*_certain(results.certain), ""] if results.certain else []
    return [f"model: {results.model}", "", *certain, *_grinding(results.grinding), "", *measured(results)]


def measured(results: Results) -> list[str]:
    """The statistical results, which a page of the documentation includes."""
    if results.honesty is None:
        return ["nothing was observed yet"]
    lines = _honesty(results.honesty, results.counts, results.fitted)
    attacks = [item for item in results.detections if not says_of(item.name)[1].is_curve]
    curves = [item for item in results.detections if says_of(item.name)[1].is_curve]
    if attacks:
        lines += ["", f"### Caught, at {LIMIT:.1%} false positives for each submission of one group", ""]
        lines += _detections(attacks)
    if curves:
        lines += ["", "### Policies near the right one", "", *_curves(curves)]
    return lines


def write_into(page: Path, lines: Sequence[str]) -> None:
    """Replace the lines between the two marks of a Markdown page. Raises ConfigError where it has none."""
    before, mark, rest = page.read_text().partition(BEGIN)
    _, end, after = rest.partition(END)
    if not mark or not end:
        raise ConfigError(f"{page} has no place for the figures: the lines {BEGIN} and {END}")
    page.write_text(f"{before}{mark}\n" + "\n".join(lines) + f"\n{end}{after}")


def _certain(trials: Sequence[Trial]) -> list[str]:
    rows = [
        (
            trial.kind,
            trial.says,
            f"{trial.caught} of {trial.tried}",
            ", ".join(trial.reasons),
            f"{trial.seconds * 1000:.0f}",
        )
        for trial in trials
    ]
    return ["### Refused always", "", *_table(("kind", "what it does", "refused", "reason", "longest look, ms"), rows)]


def _grinding(found: Grinding) -> list[str]:
    return [
        f"Grinding of node ids: of {found.ids} ids the best has {found.best_by_guess:.0%} easy prompts under a guessed "
        f"beacon, and {found.best_in_truth:.0%} under the one that comes after its registration; any id has "
        f"{found.easy:.0%}.",
    ]


def _honesty(found: Honesty, counts: dict[str, int], fitted: Fit | None) -> list[str]:
    rows = [
        ("submission (one group)", *_of_rate(found.submissions), f"{found.tail_submissions:.1e}"),
        ("completion", *_of_rate(found.completions), f"{found.tail_completions:.1e}"),
        ("32-token chunk", *_of_rate(found.chunks), ""),
        ("submission, by 38/10/8 for each chunk", *_of_rate(found.by_published), ""),
    ]
    lines = ["### Honest work called false", ""]
    lines += _table(("judged by", "counted", "rate", "95% interval", "by fitted tail"), rows)
    lines += [
        "",
        "- Honest groups: " + ", ".join(f"{name.removeprefix('honest: ')} {count}" for name, count in counts.items()),
    ]
    lines.append(f"- Highest sum of an honest history: {found.history_highest:.1f}")
    if fitted is not None:
        worst = ", ".join(name.removeprefix("honest: ") for name in fitted.worst)
        lines.append(f"- Environments that deviate most (exponents; mantissas; margins): {worst}")
    return lines


def _detections(found: Iterable[Detection]) -> list[str]:
    rows = [
        (
            item.name,
            says_of(item.name)[0],
            f"{item.kl:.2g}",
            *_of_rate(item.caught)[:2],
            f"{item.caught.least:.1%}",
            f"{item.by_chunk.value:.1%}",
            "more" if item.tokens is None else str(item.tokens),
            "-" if item.submissions is None else str(item.submissions),
            WORDS[item.reason],
            _published(item),
        )
        for item in found
    ]
    heads = (
        "class",
        "what it does",
        "KL, nats a token",
        "caught",
        "rate",
        "at least (95%)",
        "by one chunk",
        "tokens for 99%",
        "submissions until its history tells",
        "by",
        PUBLISHED,
    )
    return _table(heads, rows)


def _curves(found: Iterable[Detection]) -> list[str]:
    rows = [
        (
            item.name,
            says_of(item.name)[0],
            f"{item.kl:.2g}",
            *_of_rate(item.caught),
            "-" if item.submissions is None else str(item.submissions),
            _published(item),
        )
        for item in found
    ]
    return _table(
        (
            "class",
            "what it does",
            "KL, nats a token",
            "caught",
            "rate",
            "95% interval",
            "submissions until its history tells",
            PUBLISHED,
        ),
        rows,
    )


def _published(item: Detection) -> str:
    return f"{item.by_published.value:.0%}"


def _of_rate(rate: Rate) -> tuple[str, str, str]:
    low, high = rate.interval
    return f"{rate.hits} of {rate.trials}", f"{rate.value:.1%}", f"{low:.1%} to {high:.1%}"


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    return [f"| {' | '.join(heads)} |", "|" + "---|" * len(heads), *(f"| {' | '.join(row)} |" for row in rows)]


def json_of(results: Results) -> str:
    """The results as one line."""
    plain: dict[str, Any] = {
        "benchmark": "attacks",
        "model": results.model,
        "certain": {trial.kind: [trial.caught, trial.tried] for trial in results.certain},
        "detected": {item.name: [item.caught.hits, item.caught.trials] for item in results.detections},
    }
    if results.honesty is not None:
        plain["false_positives"] = [results.honesty.submissions.hits, results.honesty.submissions.trials]
        plain["false_positives_by_tail"] = float(f"{results.honesty.tail_submissions:.3g}")
    return json.dumps(plain)
