"""Costs of TOPLOC proofs, compared with the reference library."""
