"""A cheating worker as a process: `python -m node.testnet.adversaries KIND CONFIG`."""

from __future__ import annotations

import functools
import sys
from pathlib import Path

from node.cli import report
from node.commands.node import run_configured
from node.lifetime import die_with_parent
from node.sources import load_config
from node.testnet.adversaries.kinds import check_kinds


def main(kind: str, config: str) -> int:
    """Run the node of this configuration file as an adversary of this kind."""
    from node.testnet.adversaries.catalogue import ADVERSARIES
    from node.testnet.adversaries.worker import build_adversary

    check_kinds([kind])
    settings = load_config(file=Path(config), environment={}, flags={})
    return run_configured(settings, build=functools.partial(build_adversary, adversary=ADVERSARIES[kind]))


def run(words: list[str]) -> int:
    """Like `main`, with a sentence instead of a traceback."""
    die_with_parent()
    try:
        return main(*words)
    except KeyboardInterrupt:
        return 130
    except Exception as error:
        return report(error)


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
