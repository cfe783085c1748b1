"""The one object that grants trust, `TrustedState`: verified envelopes in, trusted messages out. Pure."""

from roles.trusted.ledger_facts import LedgerView
from roles.trusted.state import MAX_ROUNDS, TrustedState
from roles.trusted.submissions import MAX_DIGESTS_PER_INDEX, MAX_INDICES, AdmittedSubmission
from roles.trusted.verdicts import Standing, is_verdict_on

__all__ = [
    "MAX_DIGESTS_PER_INDEX",
    "MAX_INDICES",
    "MAX_ROUNDS",
    "AdmittedSubmission",
    "LedgerView",
    "Standing",
    "TrustedState",
    "is_verdict_on",
]
