"""Shows a node or a testnet in a terminal: the same rows as the page, redrawn by rich."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from node.cells import add_row, words
from node.phrases import phrase_of
from node.status.client import read_status
from node.testnet.picture import sparkline

Status = Mapping[str, Any]
SECONDS = 1.0
FIXED_LINES = 14
OUTCOMES = {"accepted": "green", "refused": "red", "dropped": "red", "unjudged": "yellow"}
STATES = {"ready": "green", "killed": "red", "crashed": "red"}


def watch(home: Path, *, console: Console | None = None, times: int | None = None) -> None:
    """Draw until interrupted (or `times` times). Raises ConfigError when no node runs there, or it has exited."""
    console = console or Console()
    status = read_status(home)
    with Live(console=console, auto_refresh=False, screen=console.is_terminal) as live:
        drawn = 0
        while True:
            live.update(render(status, width=console.width, height=console.height), refresh=True)
            drawn += 1
            if drawn == times:
                return
            time.sleep(SECONDS)
            status = read_status(home)


def render(status: Status, *, width: int = 100, height: int = 40) -> Group:
    """One picture of at most `height` lines, with fewer nodes and submissions where the terminal is small."""
    rows = max(3, (height - FIXED_LINES) // 2)
    parts: list[RenderableType] = [_title(status), Text(), _progress(status, width), Text(), _submissions(status, rows)]
    nodes = status.get("nodes", ())
    parts += [Text(), _nodes(nodes, rows, width)] if len(nodes) > 1 else [Text(), _recent(status, rows)]
    return Group(*parts, Text("Ctrl-C stops watching; the node goes on", style="dim"))


def summary_lines(status: Status) -> list[str]:
    """The same in plain lines, one fact per line, for a pipe or a quick look."""
    facts = status.get("facts", {})
    totals = facts.get("totals", {})
    shown = {
        "node": status.get("node"),
        "role": status.get("role"),
        "state": facts.get("phase", "running") if facts.get("ended") is None else "the run has ended",
        "run": status.get("run") or facts.get("run"),
        "step": _step(status),
        "checkpoint": "none yet" if status.get("committed_step") == -1 else status.get("committed_step"),
        "ledger": status.get("ledger_down") or (f"block {facts['block']}" if facts.get("block") else None),
        "DHT": status.get("directory_down") or _peers(status),
        "relays": status.get("relays"),
        **_outcomes(status, f"{totals.get('accepted', 0)} submissions ({totals.get('tokens', 0)} tokens)"),
        "wallets": ", ".join(_wallet(row) for row in status.get("wallets", ())) or None,
        "up for": f"{status['uptime_seconds']:.0f} s" if "uptime_seconds" in status else None,
        "loop lag": f"{status['loop_lag_p99_seconds']} s (99 %)" if "loop_lag_p99_seconds" in status else None,
    }
    return [f"{name:12} {value}" for name, value in shown.items() if value not in (None, "")]


def _outcomes(status: Status, whole: str) -> dict[str, str]:
    """Accepted and refused submissions. For a worker its own, with the whole run's separately."""
    own = next((row for row in status.get("nodes", ()) if row.get("id") == status.get("node")), None)
    if status.get("role") != "worker" or own is None:
        return {"accepted": whole, "refused": _refused(status)}
    mine = f"{own.get('accepted', 0)} of this node's submissions"
    return {"accepted": mine, "refused": str(own.get("refused", 0)), "whole run": f"{whole} accepted"}


def _title(status: Status) -> Text:
    facts = status.get("facts", {})
    what = f"{status.get('role', 'node')} {str(status.get('node') or '')[:12]}".strip()
    run = words(f"   {facts.get('title', '')}   run {str(facts.get('run', '-'))[:12]}")
    return Text.assemble(("intellect-node ", "bold"), words(what, "cyan"), run, no_wrap=True, overflow="ellipsis")


def _progress(status: Status, width: int) -> Table:
    facts, steps = status.get("facts", {}), status.get("steps", ())
    rewards = [row.get("reward", row.get("sampled_reward")) for row in steps]
    curve = [value for value in rewards if isinstance(value, int | float)]
    totals = facts.get("totals", {})
    table = Table.grid(padding=(0, 2))
    table.add_column(style="cyan", no_wrap=True, min_width=8)
    table.add_column(no_wrap=True, overflow="ellipsis")
    add_row(table, "step", f"{_step(status)}   {facts.get('phase', '')}")
    ends = f"  {curve[0]:.3f} -> {curve[-1]:.3f}" if curve else "nothing yet"
    add_row(table, "reward", Text.assemble((sparkline(curve, width=max(8, min(60, width - 36))), "green"), ends))
    add_row(table, "accepted", f"{totals.get('accepted', 0)} submissions, {totals.get('tokens', 0)} tokens")
    add_row(table, "refused", _refused(status))
    add_row(table, "wallets", ", ".join(_wallet(row) for row in status.get("wallets", ())[:3]) or "-")
    trouble = status.get("ledger_down") or status.get("directory_down")
    add_row(table, "network", words(trouble, "red") if trouble else _network(status))
    return table


def _submissions(status: Status, rows: int) -> Table:
    table = _table("step", "index", "worker", "tokens", "verdicts", "outcome")
    newest = sorted(status.get("submissions", ()), key=lambda row: float(row.get("seen", 0)), reverse=True)
    for row in newest[:rows]:
        votes = Counter("+" if vote.get("outcome") == "accept" else "x" for vote in row.get("votes", ()))
        outcome = str(row.get("outcome"))
        said = f"{outcome}: {row['reason']}" if row.get("reason") else outcome
        said += f", in tally {row['epoch']}" if "epoch" in row else ""
        cells = (row.get("step"), row.get("index"), row.get("worker"), row.get("tokens", "-"))
        add_row(table, *map(str, cells), "+" * votes["+"] + "x" * votes["x"], words(said, OUTCOMES.get(outcome, "")))
    if not newest:
        add_row(table, "-", "", "no submission has been seen yet", "", "", "")
    return table


def _nodes(nodes: Sequence[Status], rows: int, width: int) -> Table:
    table = _table("node", "state", "accepted", "refused", "said last")
    for row in nodes[:rows]:
        state = str(row.get("state", "seen"))
        add_row(
            table,
            str(row.get("name")), words(state, STATES.get(state.split(" ")[0], "")), str(row.get("accepted", "")),
            str(row.get("refused", "")), str(row.get("said", ""))[: max(10, width - 52)],
        )  # fmt: skip
    if len(nodes) > rows:
        add_row(table, f"and {len(nodes) - rows} more", "", "", "", "")
    return table


def _recent(status: Status, rows: int) -> Table:
    table = _table("time", "what it said")
    for event in list(status.get("recent", ()))[-rows:]:
        clock = time.strftime("%H:%M:%S", time.localtime(float(event.get("ts", 0))))
        add_row(table, clock, phrase_of(event) or str(event.get("event")))
    return table


def _table(*columns: str) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold cyan")
    for name in columns:
        table.add_column(name, no_wrap=True, overflow="ellipsis")
    return table


def _step(status: Status) -> str:
    wanted = status.get("facts", {}).get("steps")
    trained = [row["step"] for row in status.get("steps", ()) if "trained" in row]
    now = f"{max(trained)} trained" if trained else str(status.get("step", 0))
    return f"{now} of {wanted}" if wanted else now


def _refused(status: Status) -> str:
    count = status.get("facts", {}).get("totals", {}).get("refused", 0)
    reasons: Counter[str] = Counter(status.get("refusals", {}))
    why = ", ".join(f"{times} {reason}" for reason, times in reasons.most_common(3))
    return f"{count} ({why})" if why else str(count)


def _wallet(row: Status) -> str:
    return f"{str(row.get('wallet'))[:10]}.. {row.get('final', 0)} final + {row.get('pending', 0)} pending"


def _peers(status: Status) -> str | None:
    return f"{status['directory']}, {status.get('peers', 0)} peers" if "directory" in status else None


def _network(status: Status) -> str:
    facts = status.get("facts", {})
    parts = (_peers(status), f"block {facts['block']}" if facts.get("block") else None)
    return ", ".join(filter(None, parts)) or "-"
