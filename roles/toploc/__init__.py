"""TOPLOC: proofs of the last hidden state, and the check that tokens are those that seeded sampling gives."""
