"""Makes `python -m node` the same as `intellect-node`."""

import sys

from node.cli import main

sys.exit(main())
