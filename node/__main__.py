"""`python -m node` is `intellect-node`."""

import sys

from node.cli import main

sys.exit(main())
