"""Measurements, each run as `python -m benchmarks.NAME`: a table for people, then one line of JSON."""

import signal
import sys

if sys.argv[:1] == ["-m"] and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(
        signal.SIGINT, signal.SIG_DFL
    )  # no traceback while imports take their seconds; `command.run` takes over
