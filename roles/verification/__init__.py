"""Verification of submissions: eight stages, cheapest first, each refusal with a named reason
(INTELLECT-2, section 2.3).

A library without network, ledger or clock access: the validator passes it bytes and signs the finding.
"""

from roles.verification.case import Case
from roles.verification.checks import CHECKS, Check
from roles.verification.duplicates import DuplicateIndex
from roles.verification.verifier import Finding, Verifier

__all__ = ["CHECKS", "Case", "Check", "DuplicateIndex", "Finding", "Verifier"]
