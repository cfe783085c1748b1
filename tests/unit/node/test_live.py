"""The testnet's page and lines: every fact that a viewer needs is on them."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from node.testnet.live import Frame, PlainView, render, summary_lines
from node.testnet.picture import Picture

WALLET = "0x44688322193cF72A49A9AAa8453746B50747D56b"


def frame(picture: Picture | None = None, **changes: object) -> Frame:
    values: dict[str, object] = {
        "picture": picture or filled_picture(),
        "steps": 20,
        "seconds": 75.0,
        "run": "ab" * 32,
        "join_command": "intellect-node --role worker --join /tmp/join",
        "block": 42,
        "contributions": {WALLET: (1000, 200)},
        "states": {"trainer": "ready", "worker-1": "crashed (-9)"},
    }
    return Frame(**{**values, **changes})  # type: ignore[arg-type]


def filled_picture() -> Picture:
    picture = Picture(quorum=1)
    picture.take("trainer", {"ts": 1.0, "event": "step.opened", "step": 1})
    for step, reward in ((1, 0.25), (2, 0.75)):
        picture.take("trainer", {"ts": 2.0, "event": "batch.closed", "step": step, "reward": reward})
        picture.take("trainer", {"ts": 3.0, "event": "step.trained", "step": step})
    for digest, outcome, reason in (("a", "accept", "accepted"), ("b", "fault", "computation")):
        picture.take(
            "validator-1",
            {
                "ts": 2.0,
                "event": "verdict.signed",
                "submission": digest,
                "node": "n",
                "outcome": outcome,
                "reason": reason,
                "tokens": 1200,
            },
        )
    return picture


def test_render__shows_steps_reward_refusals_wallets_and_the_command() -> None:
    console = Console(file=io.StringIO(), width=120, record=True)
    console.print(render(frame()))
    shown = console.export_text()
    for text in ("2 of 20 trained", "0.750", "▃▆", "1 computation", WALLET, "1000", "200", "crashed (-9)", "--join"):
        assert text in shown


@pytest.mark.parametrize(("width", "height"), [(80, 24), (120, 40), (40, 15), (200, 60)])
@pytest.mark.parametrize("wallets", [0, 2, 30])
@pytest.mark.parametrize("nodes", [8, 60])
def test_render__fits_the_terminal(width: int, height: int, wallets: int, nodes: int) -> None:
    console = Console(file=io.StringIO(), width=width, height=height, record=True)
    contributions = {f"0x{number:040x}": (number, 1) for number in range(wallets)}
    states = {f"validator-{number}": "ready" for number in range(nodes)}
    shown = frame(contributions=contributions, states=states, join_command="intellect-node --join " + "x" * 90)
    console.print(render(shown, width=width, height=height - 1))
    lines = console.export_text().splitlines()
    assert len(lines) <= height - 1
    assert lines[-1].startswith("Ctrl-C stops everything")


@pytest.mark.parametrize(("width", "name"), [(44, "0x44688322193c.."), (80, WALLET)])
def test_render__a_narrow_terminal_cuts_the_address_not_the_numbers(width: int, name: str) -> None:
    console = Console(file=io.StringIO(), width=width, record=True)
    console.print(render(frame(contributions={WALLET: (1_000_000, 200_000)}), width=width))
    (row,) = [line for line in console.export_text().splitlines() if line.startswith("0x")]
    assert row.split() == [name, "1000000", "200000"]


def test_plain_view__says_each_step_and_each_change_once(capsys: pytest.CaptureFixture[str]) -> None:
    view = PlainView()
    view.draw(frame())
    view.draw(frame())
    lines = capsys.readouterr().out.splitlines()
    assert sum("step 2/20 reward 0.750" in line for line in lines) == 1
    assert sum("worker-1 crashed (-9)" in line for line in lines) == 1
    assert sum("first accepted rollouts" in line for line in lines) == 1


def test_summary_lines__reward_curve_and_wallets() -> None:
    text = "\n".join(summary_lines(frame(), checks=["left-over processes: 0"]))
    assert "0.250 -> 0.750 in 2 steps" in text
    assert WALLET in text
    assert "left-over processes: 0" in text
