"""Honest runs under all conditions in which honest nodes may differ, and the thresholds derived from them."""
