"""Costs of the ledger: gas of every call, trees and tallies, the sender on a bad line."""
