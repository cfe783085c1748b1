"""Reasons why a trainer cannot go on. Each text is for the operator."""

from __future__ import annotations

from dht.errors import NodeError


class BaseMismatch(NodeError):
    """The files of the base model differ from those that the run spec pins."""


class StateMissing(NodeError):
    """The ledger has checkpoints of this run that this trainer's folder lacks; starting anew
    would overwrite a live run."""


class StateForked(NodeError):
    """For one step, the ledger holds a different checkpoint than this trainer made."""


class Fenced(NodeError):
    """Another trainer took over the lease and leads the run."""


class CommitRefused(NodeError):
    """The contract permanently refuses the trainer's commit."""


class MemoryShort(NodeError):
    """An update does not fit into the memory of the device."""
