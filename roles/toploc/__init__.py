"""TOPLOC: proofs of the last hidden state, and the check that tokens are what seeded sampling gives."""
