"""The node's own numbers, each with its unit and its reason. What two nodes must agree on is in the run spec instead."""

from __future__ import annotations

OPEN_FILES = 8192
"""Descriptors asked of the system: p2pd and HTTP both keep connections open, and 1024 is soon reached."""

HEARTBEAT_SECONDS = 20.0
"""Between two announcements of our node record, each after a look for a twin; rows are re-published every third of their 90 s."""

RELAY_REFRESH_SECONDS = 3.0
"""Between two readings of the relays' node records: a dead relay leaves the list when its record expires."""

WAIT_SECONDS = 1.0
"""Between two tries while a peer, relay or the ledger does not answer."""

COMPLAIN_SECONDS = 15.0
"""Between two messages about the same thing still missing: often enough to read, rare enough not to bury the rest."""

FIRST_COMPLAINT_SECONDS = 4.0
"""Before the first of them: every start needs a second or two to find its peers, which is no news."""

START_PATIENCE_SECONDS = 300.0
"""How long a node looks for its run (spec, contract) before it gives up with a sentence."""

SHUTDOWN_SECONDS = 12.0
"""What an ordered shutdown may take before the process leaves anyway."""

OFFLINE_SECONDS = 3.0
"""Time for the last row, OFFLINE; its loss only means that others wait for the record to expire."""

LAG_PERIOD_SECONDS = 0.1
"""How often the event loop is asked how late it is."""

LAGGED_SECONDS = 2.0
"""Lateness of the event loop that is said aloud: remote calls give up after 5 s."""

LAG_SAMPLES = 600
"""Samples behind the percentile: one minute."""

EVENT_FILE_BYTES = 64 * 2**20
"""Size at which the event stream starts a new file; one old file is kept."""

UPGRADE_LOOK_SECONDS = 5.0
"""Between two looks for what the run's owner asks of this program."""

UPGRADE_SAY_SECONDS = 3600.0
"""Between two sentences about it, while it is not met."""

MEETING_SECONDS = 20.0
"""Between two comparisons of who is there with whom the DHT knows."""

DISK_LOOK_SECONDS = 60.0
"""Between two additions of what the data folder takes."""

LOG_FILE_BYTES = 8 * 2**20
"""The same for the libraries' own messages and tracebacks."""

STATUS_TIMEOUT_SECONDS = 5.0
"""What a status request may take."""

STATUS_LOOK_SECONDS = 0.25
"""Between two looks of a stream for what is new: so often a page moves."""

STATUS_SILENCE_SECONDS = 15.0
"""After which a stream says that nothing is new: below the time-outs of proxies and browsers."""

TALLY_LOOK_SECONDS = 5.0
"""Between two questions about final tallies, while somebody looks at the page."""

STATUS_WATCHERS = 32
"""Streams open at once; more are asked to come back later."""

MAX_JOIN_BYTES = 16 * 1024
"""Largest file accepted as a join string."""

MAX_CONFIG_BYTES = 256 * 1024
"""Largest configuration file."""

OBSERVER_SECONDS = 0.25
"""Between two looks at ledger and DHT on one machine; a step takes about a second there."""

DEVELOPMENT_CHAINS = (1337, 31337)
"""Chain ids of chains that make a block for each transaction and lose none: waiting for more would never end."""

CONFIRMATIONS = 3
"""Blocks, its own included, that a block of any other chain needs before a node acts on it."""

MAX_FEE_GWEI = 500
"""The most that a transaction offers for a unit of gas, where the settings say nothing."""

LEAST_MBIT = 4
"""Least limit of a line: six transfers at once, none slower than the 64 KiB/s at which relays and readers give one up, take 3."""
