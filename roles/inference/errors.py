"""Errors of inference, by whose fault they are."""

from __future__ import annotations

from dht.errors import NodeError, PeerError


class BadCheckpoint(PeerError):
    """A checkpoint folder that the engine cannot run: a file missing or damaged, or weights of another shape."""


class InferenceError(NodeError):
    """This machine cannot do what was requested; the message says why and what to change."""


class OutOfMemory(InferenceError):
    """Not even one sequence fits into the free memory."""


class SequenceTooLong(InferenceError):
    """Prompt and output have more tokens than the model has positions for."""
