"""Errors of the network layer, classified by whose fault they are.

NodeError
├── PeerError         what a peer sent is wrong
│   └── Malformed     it does not parse, or is not in canonical form
├── TransportError    the network failed; retry with another peer or later
├── IdentityError     the node's own key file is unusable; the message says how to fix it
└── DiskFull          the disk is full; retry once there is space
"""

from __future__ import annotations

import errno


class NodeError(Exception):
    """Base of the errors a user may see. The message is a sentence for people."""


class PeerError(NodeError):
    """A peer sent something wrong."""


class Malformed(PeerError):
    """Bytes that do not parse, exceed a bound, or are not in canonical form."""


class TransportError(NodeError):
    """The network failed; retry elsewhere or later."""


class IdentityError(NodeError):
    """The node's key file is missing, unreadable or damaged."""


NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""Error numbers that mean the disk, quota or file size limit is exhausted."""


class DiskFull(NodeError):
    """The disk is full; the data was not written."""


def first_error(errors: BaseExceptionGroup[BaseException]) -> BaseException:
    """The error to report from a (nested) group: the first NodeError, otherwise the first of any kind."""
    ours, _ = errors.split(NodeError)
    found: BaseException = ours or errors
    while isinstance(found, BaseExceptionGroup):
        found = found.exceptions[0]
    return found
