"""What the ledger costs: gas of every call, trees and tallies, the sender on a bad line."""
