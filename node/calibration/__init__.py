"""Honest runs under everything that may differ between honest nodes, and the thresholds that follow from them."""
