"""The node's own constants, each with its unit and reason. What two nodes must agree on is in the run spec instead."""

from __future__ import annotations

OPEN_FILES = 8192
"""File descriptors requested from the system. p2pd and HTTP both keep connections open, and 1024 is soon exhausted."""

HEARTBEAT_SECONDS = 20.0
"""Interval between announcements of our node record, each preceded by a check for a twin. Rows are
republished every third of their 90 s."""

RELAY_REFRESH_SECONDS = 3.0
"""Interval between reads of the relays' node records. A dead relay leaves the list when its record expires."""

WAIT_SECONDS = 1.0
"""Interval between retries while a peer, relay or the ledger does not answer."""

COMPLAIN_SECONDS = 15.0
"""Interval between messages about the same thing still missing: often enough to notice, rarely
enough not to bury the rest."""

FIRST_COMPLAINT_SECONDS = 4.0
"""Delay of the first such message. Every start needs a second or two to find its
peers, which is not worth reporting."""

START_PATIENCE_SECONDS = 300.0
"""How long a node looks for its run (spec, contract) before it gives up with a sentence."""

SHUTDOWN_SECONDS = 12.0
"""How long an ordered shutdown may take before the process exits anyway."""

OFFLINE_SECONDS = 3.0
"""Timeout for publishing the last row, OFFLINE. If it is lost, others merely wait for the record to expire."""

LAG_PERIOD_SECONDS = 0.1
"""Interval at which the event loop's delay is measured."""

LAGGED_SECONDS = 2.0
"""Delay of the event loop that is reported: remote calls time out after 5 s."""

LAG_SAMPLES = 600
"""Samples for the percentile: one minute."""

EVENT_FILE_BYTES = 64 * 2**20
"""Size at which a new event file is started; one old file is kept."""

UPGRADE_LOOK_SECONDS = 5.0
"""Interval between checks for what the run's owner demands of this program."""

UPGRADE_SAY_SECONDS = 3600.0
"""Interval between messages about a demand that is not met."""

MEETING_SECONDS = 20.0
"""Interval between comparisons of the announced nodes with those in the DHT."""

DISK_LOOK_SECONDS = 60.0
"""Interval between measurements of the data folder's size."""

LOG_FILE_BYTES = 8 * 2**20
"""The same limit for the file of the libraries' own messages and tracebacks."""

STATUS_TIMEOUT_SECONDS = 5.0
"""Timeout for a status request."""

STATUS_LOOK_SECONDS = 0.25
"""Interval at which a stream checks for changes, and so at which a page updates."""

STATUS_SILENCE_SECONDS = 15.0
"""Silence after which a stream sends a keep-alive: below the timeouts of proxies and browsers."""

TALLY_LOOK_SECONDS = 5.0
"""Interval between queries for final tallies while somebody watches the page."""

STATUS_WATCHERS = 32
"""Streams open at once; further clients are asked to come back later."""

MAX_JOIN_BYTES = 16 * 1024
"""Largest file accepted as a join string."""

MAX_CONFIG_BYTES = 256 * 1024
"""Largest configuration file."""

OBSERVER_SECONDS = 0.25
"""Interval between reads of ledger and DHT when all nodes are on one machine, where a step takes about a second."""

DEVELOPMENT_CHAINS = (1337, 31337)
"""Chain ids of chains that make a block for each transaction and lose none. Waiting for more blocks would never end."""

CONFIRMATIONS = 3
"""Blocks, its own included, that a block of any other chain needs before a node acts on it."""

MAX_FEE_GWEI = 500
"""Maximum price per unit of gas, unless the settings give one."""

LEAST_MBIT = 4
"""Minimum bandwidth limit: six transfers at once, none slower than the 64 KiB/s below which relays and
readers give up, need 3 Mbit/s."""
