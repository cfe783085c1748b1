"""One process of the network: configuration, command line, composition of the parts, and the local testnet."""

__version__ = "0.1.0"
