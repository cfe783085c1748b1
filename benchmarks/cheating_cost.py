"""What cheating brings in, against audit rate, stake and strikes: a formula, and its table.

    python -m benchmarks.cheating_cost [--validators N] [--strikes K] [--detection D] [--saved S] [--cost G]

Of one submission: `u` is its reward, `g` what making it honestly costs, `s` the share of `g` that the cheat saves. `n` honest
validators each audit it with probability `r`, and an audit finds the fault with probability `d` (docs/detection.md), which
obliges all to audit it and so costs the node a strike. A cheat is caught with probability

    q = d (1 - (1 - r)^n)

and the node is ejected at the k-th. Until then it expects k / q cheats, of which k earn nothing. Beside an honest node, each
cheat brings in `s g` and each one caught loses `u`; at the end the stake `S` is slashed:

    gain = k (s g / q - u) - S

It does not depend on how many honest submissions stand between the cheats: those only take longer. Cheating loses when

    S > k (s g / q - u)        and without any stake when        q > s g / u

which is also the bound for cheats that are refused softly, without a strike. On probation r is 1, so q = d.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass

from benchmarks.command import count, finish, run, share

RATES = (1000, 500, 200, 100, 50, 20, 10)


@dataclass(frozen=True, slots=True)
class Terms:
    """A run and a cheat. Money is in units of one submission's reward (`u` = 1)."""

    rate: float
    validators: int
    detection: float
    strikes: int
    saved: float
    cost: float

    @property
    def caught(self) -> float:
        """Probability that one cheat costs a strike."""
        return self.detection * (1 - (1 - self.rate) ** self.validators)

    @property
    def cheats(self) -> float:
        """Expected cheats until the node is ejected."""
        return self.strikes / self.caught

    @property
    def stake_needed(self) -> float:
        """The stake above which cheating loses; 0 where it loses anyway."""
        return max(0.0, self.gain(0.0))

    def gain(self, stake: float) -> float:
        """Expected gain over an honest node, until ejection."""
        return self.strikes * (self.saved * self.cost / self.caught - 1) - stake


def main(options: argparse.Namespace) -> int:
    """Print the table."""
    rows = []
    sys.stdout.write(
        f"{options.validators} honest validators, {options.strikes} strikes, an audit finds {options.detection:.0%} of cheats, "
        f"which save {options.saved:.0%} of a cost of {options.cost} rewards; stake and gain in rewards of a submission\n\n"
        "audit rate   caught   cheats until ejected   gain without stake   stake that deters\n"
    )
    for rate in RATES:
        terms = Terms(rate / 1000, options.validators, options.detection, options.strikes, options.saved, options.cost)
        rows.append({"rate": rate, "caught": terms.caught, "cheats": terms.cheats, "stake": terms.stake_needed})
        sys.stdout.write(
            f"{rate / 10:9.1f}%  {terms.caught:6.1%}  {terms.cheats:21.1f}  {terms.gain(0):19.1f}  {terms.stake_needed:18.1f}\n"
        )
    sys.stdout.write("\n")
    finish("cheating_cost", rows=rows)
    return 0


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.cheating_cost", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--validators", type=count, default=3, help="honest ones (default 3)")
    parser.add_argument("--strikes", type=count, default=3, help="until a node is ejected (default 3)")
    parser.add_argument("--detection", type=share, default=0.99, help="of a cheat that is audited (default 0.99)")
    parser.add_argument("--saved", type=share, default=0.7, help="share of the cost a cheat saves (default 0.7)")
    parser.add_argument("--cost", type=float, default=0.8, help="of an honest submission, in its rewards (default 0.8)")
    return parser.parse_args()


if __name__ == "__main__":
    run(lambda: main(parse()))
