"""Write the problem list of the default task from reasoning-gym's `chain_sum`: sums only, in order, no repeats."""

import argparse
from pathlib import Path

import reasoning_gym

PARAMETERS = {"min_terms": 4, "max_terms": 5, "min_digits": 1, "max_digits": 1, "allow_negation": False}
SEED = 2
COUNT = 2048
DRAWN = 40_000  # about one in eleven problems drawn is a sum


def compute_problems() -> list[str]:
    """Return the first COUNT distinct expressions without a minus sign, such as `7+4+9+6`."""
    dataset = reasoning_gym.create_dataset("chain_sum", seed=SEED, size=DRAWN, **PARAMETERS)
    drawn = (dataset[index]["metadata"]["expression"].replace(" ", "") for index in range(DRAWN))
    return list(dict.fromkeys(sum_ for sum_ in drawn if "-" not in sum_))[:COUNT]


def main() -> None:
    """Write the list, one expression per line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("roles/tasks/chain_sum.txt"))
    problems = compute_problems()
    parser.parse_args().out.write_text("".join(f"{problem}\n" for problem in problems), encoding="ascii")


if __name__ == "__main__":
    main()
