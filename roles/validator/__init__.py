"""The validator: judges every submission it can see, publishes signed verdicts, and builds
the tally with the others."""

from roles.validator.records import StateError
from roles.validator.validator import Validator

__all__ = ["StateError", "Validator"]
