"""`intellect-node doctor`: checks machine, keys, ports, network, ledger and run, and gives a fix for each fault."""

from node.doctor.examination import examine
from node.doctor.finding import Finding, State, worst

__all__ = ["Finding", "State", "examine", "worst"]
