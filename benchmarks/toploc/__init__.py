"""What TOPLOC proofs cost, beside the reference library."""
