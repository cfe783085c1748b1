"""The testnet's chain, as a process that ends with its parent: `python -m
node.testnet.chain` with the devnet's flags."""

from __future__ import annotations

import sys

from ledger.devnet import main
from node.lifetime import die_with_parent

if __name__ == "__main__":
    die_with_parent()
    sys.exit(main())
