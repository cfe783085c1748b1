"""Errors of the wire, by whose fault they are.

NodeError
├── PeerError         what a peer sent is wrong
│   └── Malformed     it does not parse, or is not in canonical form
├── TransportError    the network failed; another peer or another time may do
├── IdentityError     the node's own key file is unusable; the text says how to mend it
└── DiskFull          nothing more can be written; it may be tried again once there is room
"""

from __future__ import annotations

import errno


class NodeError(Exception):
    """Root of the errors a user may see; the text is a sentence for people."""


class PeerError(NodeError):
    """A peer sent something wrong."""


class Malformed(PeerError):
    """Bytes that do not parse, exceed a bound, or are not in canonical form."""


class TransportError(NodeError):
    """The network failed; retry elsewhere or later."""


class IdentityError(NodeError):
    """The node's key file is missing, unreadable or damaged."""


NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""Errors of a disk that takes no more."""


class DiskFull(NodeError):
    """The disk takes no more; what was to be written is not."""


def first_error(errors: BaseExceptionGroup[BaseException]) -> BaseException:
    """The error to report of a (nested) group: the first NodeError, else the first of any kind."""
    ours, _ = errors.split(NodeError)
    found: BaseException = ours or errors
    while isinstance(found, BaseExceptionGroup):
        found = found.exceptions[0]
    return found
