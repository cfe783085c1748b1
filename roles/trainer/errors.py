"""Why a trainer cannot go on. Each text is for the operator."""

from __future__ import annotations

from dht.errors import NodeError


class BaseMismatch(NodeError):
    """The files of the base model are not those the run spec pins."""


class StateMissing(NodeError):
    """The ledger has checkpoints of this run that this trainer's folder lacks: it would start anew over a live run."""


class StateForked(NodeError):
    """The ledger holds another checkpoint for a step than this trainer made."""


class Fenced(NodeError):
    """Another trainer leads the run: it took the lease over."""


class CommitRefused(NodeError):
    """The contract refuses the trainer's commit for good."""


class MemoryShort(NodeError):
    """An update does not fit into the memory of the device."""
