"""Signed records over a hivemind DHT: identity, encoding, envelopes, directory. Knows nothing of roles or of the ledger."""
