"""Verification of submissions: eight stages, cheapest first, each refusal with a named reason (INTELLECT-2, section 2.3).

A library: it knows no network, no ledger and no clock of others; the validator hands it bytes and signs what it finds.
"""

from roles.verification.case import Case
from roles.verification.checks import CHECKS, Check
from roles.verification.duplicates import DuplicateIndex
from roles.verification.verifier import Finding, Verifier

__all__ = ["CHECKS", "Case", "Check", "DuplicateIndex", "Finding", "Verifier"]
