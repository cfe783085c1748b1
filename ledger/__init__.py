"""The run registry on an EVM chain: runs, registrations, checkpoint commits, final tallies.

Owns everything that touches a chain or a wallet. Knows nothing of the DHT, of roles or of tensors.
"""
