"""The validator: judges every submission it can see, says so under its signature, and keeps the tally with the others."""

from roles.validator.records import StateError
from roles.validator.validator import Validator

__all__ = ["StateError", "Validator"]
